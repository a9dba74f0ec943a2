package clientgo

import (
	"context"
	"os"
	"sort"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"
)

// source lists and watches the leases of one test.
func (f *fleet) source() *cache.ListWatch {
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			return f.client.List(ctx, f.only(options))
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			return f.client.Watch(ctx, f.only(options))
		},
	}
}

// asMeant fails when objects were asked for in another way than the client was told to.
func asMeant(t *testing.T, s *server) {
	t.Helper()
	streamed, listed := false, false
	for _, one := range s.reads() {
		streamed = streamed || one.streams()
		// client-go's detector of inconsistencies lists as well, at exactly the revision that the watch list had.
		listed = listed || !one.isWatch() && strings.HasSuffix(one.path, "/leaderleases") && one.query.Get("resourceVersionMatch") != "Exact"
		if one.code >= 400 {
			t.Errorf("%d for %s?%s", one.code, one.path, one.query.Encode())
		}
	}
	if streamed != withWatchList() || listed == withWatchList() {
		t.Errorf("WatchList is %v; streamed: %v, listed: %v: %v", withWatchList(), streamed, listed, s.reads())
	}
}

func TestReflector(t *testing.T) {
	s := newServer(t)
	f := newFleet(t, newServer(t), "reflector")
	f.client = s.dynamic(t).Resource(leases).Namespace(namespace)
	f.create(upTo(25)...)
	store := cache.NewStore(cache.MetaNamespaceKeyFunc)
	reflector := cache.NewReflectorWithOptions(f.source(), &unstructured.Unstructured{}, store, cache.ReflectorOptions{})
	go reflector.RunWithContext(cancelled(t))
	until(t, "25 leases", func() (bool, any) { return len(store.ListKeys()) == 25, store.ListKeys() })
	asMeant(t, s)

	f.create(25)
	held := f.hold(3, "somebody")
	f.remove(4)
	until(t, "what changed", func() (bool, any) {
		_, created, _ := store.GetByKey(namespace + "/" + f.name(25))
		_, removed, _ := store.GetByKey(namespace + "/" + f.name(4))
		changed, _, _ := store.GetByKey(namespace + "/" + f.name(3))
		return created && !removed && holder(changed.(*unstructured.Unstructured)) == "somebody", store.ListKeys()
	})
	until(t, "the revision of the last event", func() (bool, any) {
		return reflector.LastSyncResourceVersion() >= held.GetResourceVersion(), reflector.LastSyncResourceVersion()
	})
}

// told keeps what an informer said, in order.
type told struct {
	mutex sync.Mutex
	lines []string
}

func (t *told) say(words ...string) {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	t.lines = append(t.lines, strings.Join(words, " "))
}

func (t *told) all() []string {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	return append([]string(nil), t.lines...)
}

func (t *told) handler() cache.ResourceEventHandlerFuncs {
	name := func(object any) string { return object.(metav1.Object).GetName() }
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    func(object any) { t.say("added", name(object)) },
		UpdateFunc: func(_, object any) { t.say("updated", name(object)) },
		DeleteFunc: func(object any) { t.say("deleted", name(object)) },
	}
}

// seesAll puts the same changes to any informer of the fleet's leases.
func seesAll(t *testing.T, s *server, f *fleet, informer cache.SharedIndexInformer) {
	t.Helper()
	f.create(0, 1)
	said := &told{}
	if _, err := informer.AddEventHandler(said.handler()); err != nil {
		t.Fatal(err)
	}
	go informer.RunWithContext(cancelled(t))
	until(t, "the first two", func() (bool, any) { return len(said.all()) == 2, said.all() })
	asMeant(t, s)
	f.create(2)
	f.hold(0, "somebody")
	f.remove(1)
	until(t, "three changes", func() (bool, any) { return len(said.all()) == 5, said.all() })
	lines := said.all()
	sort.Strings(lines[:2])
	expected := "added NAME-0000,added NAME-0001,added NAME-0002,updated NAME-0000,deleted NAME-0001"
	if got := strings.Join(lines, ","); got != strings.ReplaceAll(expected, "NAME", f.test) {
		t.Errorf("told: %s", got)
	}
}

func TestDynamicInformer(t *testing.T) {
	s := newServer(t)
	f := newFleet(t, newServer(t), "dynamic")
	factory := dynamicinformer.NewFilteredDynamicSharedInformerFactory(s.dynamic(t), 0, namespace,
		func(options *metav1.ListOptions) { *options = f.only(*options) })
	informer := factory.ForResource(leases)
	seesAll(t, s, f, informer.Informer())
	found, err := informer.Lister().ByNamespace(namespace).List(labels.Everything())
	if err != nil || len(found) != 2 {
		t.Errorf("%v, %v", found, err)
	}
}

func TestMetadataInformer(t *testing.T) {
	s := newServer(t)
	f := newFleet(t, newServer(t), "metadata")
	client, err := metadata.NewForConfig(s.config)
	if err != nil {
		t.Fatal(err)
	}
	factory := metadatainformer.NewFilteredSharedInformerFactory(client, 0, namespace,
		func(options *metav1.ListOptions) { *options = f.only(*options) })
	informer := factory.ForResource(leases).Informer()
	seesAll(t, s, f, informer)
	object, _, _ := informer.GetStore().GetByKey(namespace + "/" + f.name(2))
	if partial, ok := object.(*metav1.PartialObjectMetadata); !ok || partial.Labels["test"] != "metadata" || partial.UID == "" {
		t.Errorf("%#v", object)
	}
	for _, one := range s.reads() {
		if !strings.HasPrefix(one.form, "application/vnd.kubernetes.protobuf") {
			t.Errorf("%s?%s was answered as %s", one.path, one.query.Encode(), one.form)
		}
	}
}

// When the server is restarted, a watch goes on at its revision and misses nothing. A reflector whose watch finds no server in between may
// list, but from its revision on.
func TestRestart(t *testing.T) {
	restart := os.Getenv("RESTART")
	s := newServer(t)
	f := newFleet(t, newServer(t), "restart")
	f.create(upTo(5)...)
	watched := *f
	watched.client = s.dynamic(t).Resource(leases).Namespace(namespace)
	informer := cache.NewSharedIndexInformer(watched.source(), &unstructured.Unstructured{}, 0, cache.Indexers{})
	go informer.RunWithContext(cancelled(t))
	until(t, "five leases", func() (bool, any) { return len(informer.GetStore().ListKeys()) == 5, informer.GetStore().ListKeys() })
	begin, err := f.client.Get(context.Background(), f.name(4), metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	watcher, err := watchtools.NewRetryWatcherWithContext(cancelled(t), begin.GetResourceVersion(), f.source())
	if err != nil {
		t.Fatal(err)
	}
	// A watch that ends within a second without an event is an error to client-go.
	time.Sleep(1200 * time.Millisecond)
	before := len(s.reads())

	if err := os.WriteFile(restart, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	until(t, "the restart", func() (bool, any) { _, err := os.Stat(restart); return os.IsNotExist(err), err })
	f.hold(0, "somebody")
	f.create(5)
	f.remove(1)
	for _, wanted := range []string{"MODIFIED 0", "ADDED 5", "DELETED 1"} {
		event := <-watcher.ResultChan()
		object, isOne := event.Object.(*unstructured.Unstructured)
		if !isOne || string(event.Type)+" "+strings.TrimPrefix(object.GetName(), "restart-000") != wanted {
			t.Fatalf("not %s: %v", wanted, event)
		}
	}
	until(t, "what changed since", func() (bool, any) {
		keys := informer.GetStore().ListKeys()
		_, removed, _ := informer.GetStore().GetByKey(namespace + "/" + f.name(1))
		return len(keys) == 5 && !removed, keys
	})
	for _, one := range s.reads()[before:] {
		if revision := one.query.Get("resourceVersion"); revision == "" || revision == "0" {
			t.Errorf("began anew: %v", one)
		}
	}
}
