// Command crowd is what a fleet of databases does around the operators that `make bench-fleet` measures, scripted:
// the StatefulSet controller and kubelet, and in each pod our pilot, or Cassandra's management API for a peer.
//
// It owns how a node at rest behaves: our pilots as src/pilot/kube does it. It measures nothing of the operators;
// GET /figures on its own port says how far it is, and how long its heartbeats took.
package main

import (
	"encoding/json"
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"sort"
	"sync"
	"sync/atomic"
	"time"
)

// settings is what run.py writes to the standard input.
type settings struct {
	Server string `json:"server"`
	CA     string `json:"ca"`
	Cert   string `json:"cert"`
	Key    string `json:"key"`
	// Role is "navigator" or "cass-operator".
	Role string `json:"role"`
	// Figures is the address on which this program answers.
	Figures string `json:"figures"`
	// Management is the port of the management API in the peer's pods.
	Management int `json:"management"`
}

// figures are counts since the start, and the heartbeats since the last look.
type figures struct {
	nodes, ready, watching, beats, reports, lists, watches, failures atomic.Int64

	sync.Mutex
	lastFailure string
	waits       []time.Duration
}

var counted figures

func failed(what string, err error) {
	counted.failures.Add(1)
	counted.Lock()
	counted.lastFailure = fmt.Sprintf("%s %s: %v", time.Now().Format(time.TimeOnly), what, err)
	counted.Unlock()
}

func (f *figures) answered(wait time.Duration) {
	f.beats.Add(1)
	f.Lock()
	f.waits = append(f.waits, wait)
	f.Unlock()
}

func (f *figures) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	f.Lock()
	waits, last := f.waits, f.lastFailure
	f.waits = nil
	f.Unlock()
	sort.Slice(waits, func(a, b int) bool { return waits[a] < waits[b] })
	at := func(share float64) float64 {
		if len(waits) == 0 {
			return 0
		}
		return waits[int(share*float64(len(waits)-1))].Seconds()
	}
	json.NewEncoder(w).Encode(map[string]any{
		"nodes": f.nodes.Load(), "ready": f.ready.Load(), "watching": f.watching.Load(), "beats": f.beats.Load(), "reports": f.reports.Load(),
		"lists": f.lists.Load(), "watches": f.watches.Load(), "failures": f.failures.Load(), "lastFailure": last,
		"beatMedian": at(0.5), "beat99th": at(0.99),
	})
}

func main() {
	var config settings
	if err := json.NewDecoder(os.Stdin).Decode(&config); err != nil {
		log.Fatal(err)
	}
	admin, err := newAdmin(config)
	if err != nil {
		log.Fatal(err)
	}
	var begin func(*node)
	switch config.Role {
	case "navigator":
		crowd := newPilots(admin)
		begin = crowd.begin
	case "cass-operator":
		api := newManagement()
		begin = api.begin
		listener, err := net.Listen("tcp4", fmt.Sprintf("0.0.0.0:%d", config.Management))
		if err != nil {
			log.Fatal(err)
		}
		go http.Serve(listener, api)
	default:
		log.Fatalf("no such role: %q", config.Role)
	}
	go newKubelet(admin, config.Role == "navigator", begin).run()
	http.Handle("/figures", &counted)
	http.Handle("/make", maker{admin})
	log.Fatal(http.ListenAndServe(config.Figures, nil))
}
