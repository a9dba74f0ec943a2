package main

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"sync"
	"time"
)

const (
	group     = "/apis/navigator.jetstack.io/v1beta1"
	heartbeat = 30 * time.Second
	peers     = 5 * time.Minute
	// clusterLabel selects the Pilots of one cluster.
	clusterLabel = "navigator.jetstack.io/cassandra-cluster-name"
)

// pilots are our pilots at rest. Each has a watch on a connection of its own; for all else those of one cluster share one, where real ones
// have one each: a process may have 20 000 open files on many machines, and kube-apiserver is one process.
type pilots struct {
	admin *client
	sync.Mutex
	shared map[string]*client
}

func newPilots(admin *client) *pilots {
	return &pilots{admin: admin, shared: map[string]*client{}}
}

func (p *pilots) begin(n *node) {
	go func() {
		for {
			err := p.start(n)
			if err == nil {
				return
			}
			failed("start of pilot "+n.name, err)
			time.Sleep(time.Second + rand.N(time.Second))
		}
	}()
}

// clients returns what asks and what watches, with the token of the pod.
func (p *pilots) clients(n *node) (asking, hearing *client, err error) {
	var made struct {
		Status struct {
			Token string `json:"token"`
		} `json:"status"`
	}
	path := fmt.Sprintf("/api/v1/namespaces/%s/serviceaccounts/%s/token", n.namespace, n.account)
	bound := object{"apiVersion": "v1", "kind": "Pod", "name": n.name, "uid": n.uid}
	body := object{"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": object{"expirationSeconds": 14400, "boundObjectRef": bound}}
	if err := p.admin.ask(http.MethodPost, path, plainJSON, body, &made); err != nil {
		return nil, nil, err
	}
	token := made.Status.Token
	p.Lock()
	defer p.Unlock()
	shared := p.shared[n.namespace]
	if shared == nil {
		shared = newClient(p.admin.server, "", p.admin.authority(), 1)
		p.shared[n.namespace] = shared
	}
	return &client{p.admin.server, token, shared.http}, newClient(p.admin.server, token, p.admin.authority(), 1), nil
}

// pilotObject is what a pilot at rest reads of its Pilot.
type pilotObject struct {
	Metadata meta   `json:"metadata"`
	Message  string `json:"message"`
	Spec     struct {
		ConfigHash string `json:"configHash"`
		Version    string `json:"version"`
	} `json:"spec"`
}

type pilot struct {
	node            *node
	asking, hearing *client
	own             string
	seen            pilotObject
	uses            int64
}

// start waits for the Pilot, and reports that the database serves; from then on the pilot is at rest.
func (p *pilots) start(n *node) error {
	asking, hearing, err := p.clients(n)
	if err != nil {
		return err
	}
	one := &pilot{node: n, asking: asking, hearing: hearing}
	one.own = fmt.Sprintf("%s/namespaces/%s/pilots", group, n.namespace)
	if err := one.list(); err != nil {
		return err
	}
	if one.seen.Metadata.Name == "" {
		return fmt.Errorf("there is no Pilot yet")
	}
	if err := one.patch(one.report()); err != nil {
		return err
	}
	counted.reports.Add(1)
	if err := n.becomesReady(); err != nil {
		return err
	}
	go one.follow()
	go one.rest()
	return nil
}

func (p *pilot) list() error {
	var list struct {
		Metadata meta          `json:"metadata"`
		Items    []pilotObject `json:"items"`
	}
	query := url.Values{"fieldSelector": {"metadata.name=" + p.node.name}, "limit": {"500"}}
	if err := p.asking.ask(http.MethodGet, p.own+"?"+query.Encode(), "", nil, &list); err != nil {
		return err
	}
	counted.lists.Add(1)
	if len(list.Items) > 0 {
		p.seen = list.Items[0]
	}
	p.seen.Metadata.ResourceVersion = list.Metadata.ResourceVersion
	return nil
}

// follow watches the own Pilot. A new configuration is seen and not judged, so that a roll stops at its first node.
func (p *pilot) follow() {
	for {
		counted.watching.Add(1)
		query := url.Values{"watch": {"true"}, "fieldSelector": {"metadata.name=" + p.node.name}, "timeoutSeconds": {"290"},
			"allowWatchBookmarks": {"true"}, "resourceVersion": {p.seen.Metadata.ResourceVersion}}
		gone := false
		err := watch(p.hearing, p.own+"?"+query.Encode(), func(one event[pilotObject]) {
			if one.Type == "ERROR" {
				failed("watch of pilot "+p.node.name, refusal{http.StatusGone, one.Object.Message})
				gone = true
				return
			}
			p.seen.Metadata.ResourceVersion = one.Object.Metadata.ResourceVersion
		})
		counted.watching.Add(-1)
		if err != nil {
			failed("watch of pilot "+p.node.name, err)
			gone = is(err, http.StatusGone)
			time.Sleep(time.Second + rand.N(time.Second))
		}
		for gone {
			if err := p.list(); err != nil {
				failed("list of pilot "+p.node.name, err)
				time.Sleep(time.Second)
				continue
			}
			gone = false
		}
	}
}

// rest sends heartbeats with figures, and looks at the peers.
func (p *pilot) rest() {
	look := time.Now().Add(rand.N(peers))
	next := time.Now().Add(heartbeat)
	for {
		if wait := time.Until(next); wait > 0 {
			time.Sleep(wait)
		}
		begun := time.Now()
		next = begun.Add(heartbeat)
		p.uses += 4096
		if err := p.patch(p.figures()); err != nil {
			failed("heartbeat of "+p.node.name, err)
			next = begun.Add(time.Second + rand.N(time.Second))
			continue
		}
		counted.answered(time.Since(begun))
		if begun.After(look) {
			look = look.Add(peers)
			query := url.Values{"labelSelector": {clusterLabel + "=" + p.node.labels[clusterLabel]}}
			if err := p.asking.ask(http.MethodGet, p.own+"?"+query.Encode(), "", nil, nil); err != nil {
				failed("peers of "+p.node.name, err)
			}
			counted.lists.Add(1)
		}
	}
}

func (p *pilot) patch(status object) error {
	status["lastHeartbeatTime"] = time.Now().UTC().Format("2006-01-02T15:04:05.000000000Z")
	path := p.own + "/" + p.node.name + "/status?fieldManager=navigator-pilot"
	return p.asking.ask(http.MethodPatch, path, mergePatch, object{"status": status}, nil)
}

func (p *pilot) figures() object {
	used := 50<<30 + p.uses
	return object{"storage": object{"usedBytes": used}, "cassandra": object{"loadBytes": used}}
}

// report is the whole status of a node that serves (src/pilot/node/report.rs).
func (p *pilot) report() object {
	now := time.Now().UTC().Format(time.RFC3339)
	n, version, generation := p.node, p.seen.Spec.Version, p.seen.Metadata.Generation
	condition := func(kind, status, reason string) object {
		return object{"type": kind, "status": status, "reason": reason, "message": "Cassandra serves clients, as it should", "lastTransitionTime": now,
			"observedGeneration": generation}
	}
	return object{
		"phase": "Running", "observedGeneration": generation, "version": version, "pilotVersion": "v0.2.0", "health": "Green",
		"configHash": p.seen.Spec.ConfigHash,
		"identity":   object{"clusterID": n.namespace, "nodeID": n.uid, "since": now},
		"instance":   object{"runtime": "Kubernetes", "node": "machine-0", "uid": n.uid},
		"endpoints":  []object{{"name": "transport", "host": n.ip, "port": 7000}, {"name": "client", "host": n.ip, "port": 9042}},
		"process":    object{"pid": 17, "startTime": now, "restarts": 0},
		"storage":    object{"path": "/var/lib/cassandra", "capacityBytes": 100 << 30, "usedBytes": 50 << 30},
		"cassandra": object{"version": version, "operationMode": "NORMAL", "joined": true, "tokens": 16, "loadBytes": 50 << 30,
			"unreachable": []string{}},
		"conditions": []object{condition("Ready", "True", "Serving"), condition("Started", "True", "Started"), condition("Stopped", "False", "Runs"),
			condition("Decommissioned", "False", "Member"), condition("PreflightPassed", "True", "Passed"),
			condition("VolumeHoldsData", "True", "Marked"), condition("ConfigApplied", "True", "Applied"), condition("Writable", "True", "Room"),
			condition("ProgramCurrent", "True", "Current")},
	}
}
