package main

import (
	"encoding/json"
	"net"
	"net/http"
	"sync"
	"time"
)

// management is what the management API in each Cassandra pod answers to cass-operator. The address that was asked tells the pod.
type management struct {
	sync.Mutex
	nodes    map[string]*node
	clusters map[string][]*node
}

func newManagement() *management {
	return &management{nodes: map[string]*node{}, clusters: map[string][]*node{}}
}

func (m *management) begin(n *node) {
	m.Lock()
	defer m.Unlock()
	m.nodes[n.ip] = n
	m.clusters[n.namespace] = append(m.clusters[n.namespace], n)
}

func (m *management) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	counted.reports.Add(1)
	host, _, _ := net.SplitHostPort(r.Context().Value(http.LocalAddrContextKey).(net.Addr).String())
	m.Lock()
	n := m.nodes[host]
	m.Unlock()
	if n == nil {
		http.Error(w, "there is no pod of "+host, http.StatusNotFound)
		return
	}
	switch r.Method + " " + r.URL.Path {
	case "POST /api/v0/lifecycle/start":
		w.WriteHeader(http.StatusCreated)
		go func() {
			for n.becomesReady() != nil {
				time.Sleep(time.Second)
			}
		}()
	case "POST /api/v0/ops/auth/role":
		w.WriteHeader(http.StatusCreated)
	case "GET /api/v0/ops/auth/role":
		json.NewEncoder(w).Encode([]any{})
	case "GET /api/v0/metadata/versions/features":
		json.NewEncoder(w).Encode(object{"cassandra_version": "4.1.2", "features": []string{}})
	case "GET /api/v0/metadata/endpoints":
		json.NewEncoder(w).Encode(object{"entity": m.endpoints(n)})
	case "GET /api/v0/probes/cluster", "POST /api/v0/ops/seeds/reload":
	default:
		failed(r.Method+" "+r.URL.Path, refusal{http.StatusNotFound, "the scripted management API does not know it"})
		w.WriteHeader(http.StatusNotFound)
	}
}

func (m *management) endpoints(asked *node) []object {
	m.Lock()
	defer m.Unlock()
	found := []object{}
	for _, n := range m.clusters[asked.namespace] {
		if n.ready {
			found = append(found, object{"HOST_ID": n.uid, "IS_ALIVE": "true", "ENDPOINT_IP": n.ip, "NATIVE_ADDRESS_AND_PORT": n.ip + ":9042",
				"RPC_ADDRESS": n.ip, "RELEASE_VERSION": "4.1.2", "STATUS": "NORMAL"})
		}
	}
	return found
}
