package main

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

const workers = 16

// node is one pod of a StatefulSet, and what runs in it.
type node struct {
	namespace, name, account, uid, ip string
	labels                            map[string]string
	set                               *set
	kubelet                           *kubelet
	ready                             bool
}

// set is a StatefulSet as it was last seen.
type set struct {
	sync.Mutex
	wanted statefulSet
	nodes  []*node
	queued atomic.Bool
}

type statefulSet struct {
	Metadata meta `json:"metadata"`
	Spec     struct {
		Replicas int `json:"replicas"`
		Template struct {
			Metadata struct {
				Labels      map[string]string `json:"labels"`
				Annotations map[string]string `json:"annotations"`
			} `json:"metadata"`
			Spec json.RawMessage `json:"spec"`
		} `json:"template"`
		Claims []struct {
			Metadata meta            `json:"metadata"`
			Spec     json.RawMessage `json:"spec"`
		} `json:"volumeClaimTemplates"`
	} `json:"spec"`
}

// kubelet makes the pods that StatefulSets ask for, all at once, and lets them run. No pod is ever ended: nothing here needs it.
type kubelet struct {
	api   *client
	begin func(*node)
	queue chan *set
	sets  map[string]*set
	count uint32
	// readyAtOnce spares the status of a pod that is not ready yet.
	readyAtOnce bool
	sync.Mutex
}

func newKubelet(api *client, readyAtOnce bool, begin func(*node)) *kubelet {
	return &kubelet{api: api, begin: begin, readyAtOnce: readyAtOnce, queue: make(chan *set, 1<<16), sets: map[string]*set{}}
}

func (k *kubelet) run() {
	for range workers {
		go func() {
			for one := range k.queue {
				one.queued.Store(false)
				if err := k.sync(one); err != nil {
					failed("StatefulSet "+one.wanted.Metadata.Name, err)
					time.AfterFunc(time.Second, func() { k.look(one) })
				}
			}
		}()
	}
	const path = "/apis/apps/v1/statefulsets"
	// From the beginning each time: the events of what exists come first.
	for {
		err := watch(k.api, path+"?watch=true&timeoutSeconds=3000", func(one event[statefulSet]) {
			if one.Type == "ADDED" || one.Type == "MODIFIED" {
				k.heed(one.Object)
			}
		})
		if err != nil {
			failed("watch of StatefulSets", err)
		}
		time.Sleep(time.Second)
	}
}

// heed is only called by run's watch.
func (k *kubelet) heed(wanted statefulSet) {
	key := wanted.Metadata.Namespace + "/" + wanted.Metadata.Name
	known := k.sets[key]
	if known == nil {
		known = &set{}
		k.sets[key] = known
	}
	known.Lock()
	news := known.wanted.Metadata.Generation != wanted.Metadata.Generation
	known.wanted = wanted
	known.Unlock()
	if news {
		k.look(known)
	}
}

// look has a worker look at a StatefulSet, once for all that is new by then.
func (k *kubelet) look(one *set) {
	if one.queued.CompareAndSwap(false, true) {
		k.queue <- one
	}
}

func (k *kubelet) sync(one *set) error {
	one.Lock()
	defer one.Unlock()
	for ordinal := len(one.nodes); ordinal < one.wanted.Spec.Replicas; ordinal++ {
		made, err := k.make(one, ordinal)
		if err != nil {
			return err
		}
		one.nodes = append(one.nodes, made)
		counted.nodes.Add(1)
		k.begin(made)
	}
	return k.tell(one)
}

func revision(name string) string { return name + "-1" }

// tell writes the status of a StatefulSet whose lock is held.
func (k *kubelet) tell(one *set) error {
	ready := 0
	for _, node := range one.nodes {
		if node.ready {
			ready++
		}
	}
	m := one.wanted.Metadata
	replicas := len(one.nodes)
	status := object{"replicas": replicas, "readyReplicas": ready, "availableReplicas": ready, "currentReplicas": replicas, "updatedReplicas": replicas,
		"currentRevision": revision(m.Name), "updateRevision": revision(m.Name), "observedGeneration": m.Generation, "collisionCount": 0}
	path := fmt.Sprintf("/apis/apps/v1/namespaces/%s/statefulsets/%s/status", m.Namespace, m.Name)
	return k.api.ask(http.MethodPatch, path, mergePatch, object{"status": status}, nil)
}

// address is one of 127.0.0.0/8, where the management API of all pods listens.
func address(number uint32) string {
	return fmt.Sprintf("127.%d.%d.%d", 1+number>>16, number>>8&255, number&255)
}

func (k *kubelet) make(one *set, ordinal int) (*node, error) {
	m := one.wanted.Metadata
	name := fmt.Sprintf("%s-%d", m.Name, ordinal)
	k.Lock()
	k.count++
	made := &node{namespace: m.Namespace, name: name, set: one, kubelet: k, ip: address(k.count)}
	k.Unlock()
	var volumes []any
	for _, template := range one.wanted.Spec.Claims {
		claim := template.Metadata.Name + "-" + name
		if err := k.claim(m, claim, template.Metadata.Labels, template.Spec); err != nil {
			return nil, fmt.Errorf("claim: %w", err)
		}
		volumes = append(volumes, object{"name": template.Metadata.Name, "persistentVolumeClaim": object{"claimName": claim}})
	}
	var spec object
	if err := json.Unmarshal(one.wanted.Spec.Template.Spec, &spec); err != nil {
		return nil, err
	}
	old, _ := spec["volumes"].([]any)
	spec["volumes"] = append(volumes, old...)
	spec["hostname"], spec["nodeName"] = name, fmt.Sprintf("machine-%d", ordinal%10)
	labels := map[string]string{"controller-revision-hash": revision(m.Name), "statefulset.kubernetes.io/pod-name": name,
		"apps.kubernetes.io/pod-index": fmt.Sprint(ordinal)}
	for key, value := range one.wanted.Spec.Template.Metadata.Labels {
		labels[key] = value
	}
	body := object{"apiVersion": "v1", "kind": "Pod", "spec": spec, "metadata": object{
		"name": name, "labels": labels, "annotations": one.wanted.Spec.Template.Metadata.Annotations, "ownerReferences": []object{owner(m)}}}
	path := fmt.Sprintf("/api/v1/namespaces/%s/pods", m.Namespace)
	var pod struct {
		Metadata meta `json:"metadata"`
		Spec     struct {
			Account string `json:"serviceAccountName"`
		} `json:"spec"`
	}
	err := k.api.ask(http.MethodPost, path, plainJSON, body, &pod)
	if is(err, http.StatusConflict) {
		err = k.api.ask(http.MethodGet, path+"/"+name, "", nil, &pod)
	}
	if err != nil {
		return nil, err
	}
	made.uid, made.account, made.labels = pod.Metadata.UID, pod.Spec.Account, labels
	if k.readyAtOnce {
		return made, nil
	}
	return made, made.tell(one.wanted.Spec.Template.Spec)
}

func owner(m meta) object {
	return object{"apiVersion": "apps/v1", "kind": "StatefulSet", "name": m.Name, "uid": m.UID, "controller": true, "blockOwnerDeletion": true}
}

func (k *kubelet) claim(m meta, name string, labels map[string]string, spec json.RawMessage) error {
	path := fmt.Sprintf("/api/v1/namespaces/%s/persistentvolumeclaims", m.Namespace)
	var wanted object
	if err := json.Unmarshal(spec, &wanted); err != nil {
		return err
	}
	wanted["volumeName"] = "pv-" + m.Namespace + "-" + name
	body := object{"apiVersion": "v1", "kind": "PersistentVolumeClaim", "spec": wanted, "metadata": object{"name": name, "labels": labels}}
	if err := k.api.ask(http.MethodPost, path, plainJSON, body, nil); err != nil && !is(err, http.StatusConflict) {
		return err
	}
	status := object{"phase": "Bound", "accessModes": wanted["accessModes"], "capacity": wanted["resources"].(object)["requests"]}
	return k.api.ask(http.MethodPatch, path+"/"+name+"/status", mergePatch, object{"status": status}, nil)
}

// tell writes the status of the pod as kubelet does: containers run since a while, and are ready or not.
func (n *node) tell(template json.RawMessage) error {
	var spec struct {
		Containers     []struct{ Name, Image string } `json:"containers"`
		InitContainers []struct{ Name, Image string } `json:"initContainers"`
	}
	if err := json.Unmarshal(template, &spec); err != nil {
		return err
	}
	now := time.Now().UTC()
	started := now.Add(-30 * time.Second).Format(time.RFC3339)
	status := func(name, image string, ready bool, state object) object {
		digest := fnv.New64()
		digest.Write([]byte(n.uid + name))
		return object{"name": name, "image": image, "imageID": image, "containerID": fmt.Sprintf("containerd://%016x", digest.Sum64()), "ready": ready,
			"started": ready, "restartCount": 0, "lastState": object{}, "state": state}
	}
	var containers, inits []object
	for _, one := range spec.Containers {
		containers = append(containers, status(one.Name, one.Image, n.ready, object{"running": object{"startedAt": started}}))
	}
	for _, one := range spec.InitContainers {
		inits = append(inits, status(one.Name, one.Image, true, object{"terminated": object{
			"exitCode": 0, "reason": "Completed", "startedAt": started, "finishedAt": started, "containerID": "containerd://0"}}))
	}
	var conditions []object
	for _, kind := range []string{"PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled"} {
		holds := "True"
		if !n.ready && (kind == "Ready" || kind == "ContainersReady") {
			holds = "False"
		}
		conditions = append(conditions, object{"type": kind, "status": holds, "lastTransitionTime": now.Format(time.RFC3339)})
	}
	body := object{"phase": "Running", "hostIP": "10.0.0.1", "hostIPs": []object{{"ip": "10.0.0.1"}}, "podIP": n.ip, "podIPs": []object{{"ip": n.ip}},
		"qosClass": "Burstable", "startTime": started, "containerStatuses": containers, "initContainerStatuses": inits, "conditions": conditions}
	path := fmt.Sprintf("/api/v1/namespaces/%s/pods/%s/status", n.namespace, n.name)
	return n.kubelet.api.ask(http.MethodPatch, path, mergePatch, object{"status": body}, nil)
}

// becomesReady is told of the database in the pod.
func (n *node) becomesReady() error {
	n.set.Lock()
	defer n.set.Unlock()
	if n.ready {
		return nil
	}
	n.ready = true
	if err := n.tell(n.set.wanted.Spec.Template.Spec); err != nil {
		n.ready = false
		return err
	}
	counted.ready.Add(1)
	n.kubelet.look(n.set)
	return nil
}
