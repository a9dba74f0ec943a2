package main

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"
)

const (
	mergePatch = "application/merge-patch+json"
	plainJSON  = "application/json"
)

// object is any object of Kubernetes.
type object = map[string]any

// refusal is an answer of 400 or more.
type refusal struct {
	code int
	text string
}

func (r refusal) Error() string { return fmt.Sprintf("%d %s", r.code, r.text) }

func is(err error, code int) bool {
	refused, ok := err.(refusal)
	return ok && refused.code == code
}

// client is one user's connections to kube-apiserver. Over HTTP/1.1, as a pilot has them: a watch holds one of its own.
type client struct {
	server, token string
	http          *http.Client
}

func newClient(server, token string, tlsConfig *tls.Config, connections int) *client {
	transport := &http.Transport{
		TLSClientConfig: tlsConfig, TLSNextProto: map[string]func(string, *tls.Conn) http.RoundTripper{}, MaxConnsPerHost: connections,
		MaxIdleConnsPerHost: connections, IdleConnTimeout: 90 * time.Second, ReadBufferSize: 2048, WriteBufferSize: 2048, DisableCompression: true,
	}
	return &client{server, token, &http.Client{Transport: transport}}
}

func newAdmin(config settings) (*client, error) {
	pair, err := tls.LoadX509KeyPair(config.Cert, config.Key)
	if err != nil {
		return nil, err
	}
	authority, err := os.ReadFile(config.CA)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(authority)
	return newClient(config.Server, "", &tls.Config{RootCAs: pool, Certificates: []tls.Certificate{pair}}, 24), nil
}

// authority is what trusts the same server, without a certificate of one's own.
func (c *client) authority() *tls.Config {
	return &tls.Config{RootCAs: c.http.Transport.(*http.Transport).TLSClientConfig.RootCAs}
}

func (c *client) open(method, path, kind string, body any) (*http.Response, error) {
	var sent io.Reader
	if body != nil {
		text, err := json.Marshal(body)
		if err != nil {
			return nil, err
		}
		sent = bytes.NewReader(text)
	}
	request, err := http.NewRequest(method, c.server+path, sent)
	if err != nil {
		return nil, err
	}
	if body != nil {
		request.Header.Set("Content-Type", kind)
	}
	request.Header.Set("Accept", plainJSON)
	if c.token != "" {
		request.Header.Set("Authorization", "Bearer "+c.token)
	}
	answer, err := c.http.Do(request)
	if err != nil {
		return nil, err
	}
	if answer.StatusCode >= 400 {
		text, _ := io.ReadAll(io.LimitReader(answer.Body, 600))
		answer.Body.Close()
		return nil, refusal{answer.StatusCode, string(text)}
	}
	return answer, nil
}

// ask sends a request, and reads its answer into `into`, which may be nil.
func (c *client) ask(method, path, kind string, body, into any) error {
	answer, err := c.open(method, path, kind, body)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if into == nil {
		_, err = io.Copy(io.Discard, answer.Body)
		return err
	}
	if err = json.NewDecoder(answer.Body).Decode(into); err == nil {
		_, err = io.Copy(io.Discard, answer.Body)
	}
	return err
}

// event is one of a watch.
type event[T any] struct {
	Type   string `json:"type"`
	Object T      `json:"object"`
}

// meta is what this program reads of metadata.
type meta struct {
	Name            string            `json:"name"`
	Namespace       string            `json:"namespace"`
	UID             string            `json:"uid"`
	ResourceVersion string            `json:"resourceVersion"`
	Generation      int64             `json:"generation"`
	Labels          map[string]string `json:"labels"`
}

// watch reads events until the watch ends. Its connection is not for other requests.
func watch[T any](c *client, path string, heed func(event[T])) error {
	answer, err := c.open(http.MethodGet, path, "", nil)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	counted.watches.Add(1)
	decoder := json.NewDecoder(answer.Body)
	for {
		var one event[T]
		if err := decoder.Decode(&one); err != nil {
			if err == io.EOF {
				return nil
			}
			return err
		}
		heed(one)
	}
}
