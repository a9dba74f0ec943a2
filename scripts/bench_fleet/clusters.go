package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
)

// order is what run.py asks for: a cluster in each of these namespaces, and what an operator has made for another cluster, which `From` names by
// namespace and uid. Names are the same in all namespaces.
type order struct {
	Namespaces []string        `json:"namespaces"`
	Path       string          `json:"path"`
	Cluster    json.RawMessage `json:"cluster"`
	From       struct {
		Namespace string `json:"namespace"`
		UID       string `json:"uid"`
	} `json:"from"`
	Copied []struct {
		Path string          `json:"path"`
		Body json.RawMessage `json:"body"`
	} `json:"copied"`
}

// maker makes clusters. POST /make returns when all are made, or the first error.
type maker struct{ api *client }

func (m maker) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var wanted order
	if err := json.NewDecoder(r.Body).Decode(&wanted); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	queue, errors := make(chan string), make(chan error, len(wanted.Namespaces))
	var all sync.WaitGroup
	for range workers / 2 {
		all.Add(1)
		go func() {
			defer all.Done()
			for namespace := range queue {
				if err := m.make(wanted, namespace); err != nil {
					errors <- fmt.Errorf("%s: %w", namespace, err)
				}
			}
		}()
	}
	for _, namespace := range wanted.Namespaces {
		queue <- namespace
	}
	close(queue)
	all.Wait()
	close(errors)
	if err := <-errors; err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
	}
}

func (m maker) make(wanted order, namespace string) error {
	create := func(path string, body, into any) error {
		return m.api.ask(http.MethodPost, path, plainJSON, body, into)
	}
	account := object{"apiVersion": "v1", "kind": "ServiceAccount", "metadata": object{"name": "default"}}
	if err := create("/api/v1/namespaces", object{"apiVersion": "v1", "kind": "Namespace", "metadata": object{"name": namespace}}, nil); err != nil {
		return err
	}
	if err := create("/api/v1/namespaces/"+namespace+"/serviceaccounts", account, nil); err != nil {
		return err
	}
	var made struct {
		Metadata meta `json:"metadata"`
	}
	if err := create(strings.ReplaceAll(wanted.Path, "NAMESPACE", namespace), wanted.Cluster, &made); err != nil {
		return err
	}
	there := strings.NewReplacer(wanted.From.Namespace, namespace, wanted.From.UID, made.Metadata.UID)
	for _, one := range wanted.Copied {
		if err := create(there.Replace(one.Path), json.RawMessage(there.Replace(string(one.Body))), nil); err != nil {
			return fmt.Errorf("%s: %w", one.Path, err)
		}
	}
	return nil
}
