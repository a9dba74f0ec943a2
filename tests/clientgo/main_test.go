// Package clientgo holds what client-go's own machinery asks of an API server: reflectors, informers, the pager, watches that are begun
// again, discovery and mappings. It runs in a world of tests/parity, through the aggregator, as a ServiceAccount that has just the rights
// that these tests need.
package clientgo

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/features"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

const (
	group    = "navigator.jetstack.io"
	patience = 60 * time.Second
)

var (
	leases   = schema.GroupVersionResource{Group: group, Version: "v1beta1", Resource: "leaderleases"}
	clusters = schema.GroupVersionResource{Group: group, Version: "v1beta1", Resource: "cassandraclusters"}
)

// asked is a request that a client made for objects, as far as a test looks at it.
type asked struct {
	path  string
	query url.Values
	code  int
	// media type of the answer
	form string
}

func (a asked) isWatch() bool { return a.query.Get("watch") == "true" }

// streams tells whether the objects were asked for by a watch rather than by a list.
func (a asked) streams() bool { return a.isWatch() && a.query.Get("sendInitialEvents") == "true" }

// server is the way to the server, and the record of what was asked on it.
type server struct {
	config *rest.Config
	mutex  sync.Mutex
	record []asked
}

func newServer(t *testing.T) *server {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	if err != nil {
		t.Fatal(err)
	}
	s := &server{config: config}
	config.QPS, config.Burst = -1, 0
	config.Wrap(func(inner http.RoundTripper) http.RoundTripper { return &recorder{s, inner} })
	return s
}

type recorder struct {
	server *server
	inner  http.RoundTripper
}

func (r *recorder) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := r.inner.RoundTrip(request)
	one := asked{path: request.URL.Path, query: request.URL.Query()}
	if err == nil {
		one.code, one.form = response.StatusCode, response.Header.Get("Content-Type")
	}
	if request.Method == http.MethodGet {
		r.server.mutex.Lock()
		r.server.record = append(r.server.record, one)
		r.server.mutex.Unlock()
	}
	return response, err
}

// reads returns what was read from the server so far.
func (s *server) reads() []asked {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	return append([]asked(nil), s.record...)
}

func (s *server) dynamic(t *testing.T) dynamic.Interface {
	t.Helper()
	client, err := dynamic.NewForConfig(s.config)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// namespace is that of the kubeconfig, in which the ServiceAccount may write.
const namespace = "clientgo"

func withWatchList() bool {
	return features.FeatureGates().Enabled(features.WatchListClient)
}

func lease(name, test string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": group + "/v1beta1", "kind": "LeaderLease",
		"metadata": map[string]any{"name": name, "labels": map[string]any{"test": test}},
		"spec":     map[string]any{"holderIdentity": "nobody"},
	}}
}

func cluster(name, test string) *unstructured.Unstructured {
	pool := map[string]any{"name": "a", "replicas": int64(1), "persistence": map[string]any{"size": "1Gi"}}
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": group + "/v1beta1", "kind": "CassandraCluster",
		"metadata": map[string]any{"name": name, "labels": map[string]any{"test": test}},
		"spec":     map[string]any{"version": "5.0.6", "nodePools": []any{pool}},
	}}
}

// fleet is the leases of one test, which no other test looks at.
type fleet struct {
	t      *testing.T
	client dynamic.ResourceInterface
	test   string
}

func newFleet(t *testing.T, s *server, test string) *fleet {
	f := &fleet{t, s.dynamic(t).Resource(leases).Namespace(namespace), test}
	t.Cleanup(func() {
		err := f.client.DeleteCollection(context.Background(), metav1.DeleteOptions{}, f.only(metav1.ListOptions{}))
		if err != nil {
			t.Error(err)
		}
	})
	return f
}

func (f *fleet) only(options metav1.ListOptions) metav1.ListOptions {
	options.LabelSelector = "test=" + f.test
	return options
}

func (f *fleet) create(numbers ...int) {
	f.t.Helper()
	for _, number := range numbers {
		if _, err := f.client.Create(context.Background(), lease(f.name(number), f.test), metav1.CreateOptions{}); err != nil {
			f.t.Fatal(err)
		}
	}
}

func (f *fleet) name(number int) string { return fmt.Sprintf("%s-%04d", f.test, number) }

func (f *fleet) hold(number int, holder string) *unstructured.Unstructured {
	f.t.Helper()
	patch := fmt.Sprintf(`{"spec": {"holderIdentity": %q}}`, holder)
	held, err := f.client.Patch(context.Background(), f.name(number), types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	if err != nil {
		f.t.Fatal(err)
	}
	return held
}

func (f *fleet) remove(number int) {
	f.t.Helper()
	if err := f.client.Delete(context.Background(), f.name(number), metav1.DeleteOptions{}); err != nil {
		f.t.Fatal(err)
	}
}

func upTo(count int) []int {
	numbers := make([]int, count)
	for number := range numbers {
		numbers[number] = number
	}
	return numbers
}

// until waits for a condition; what was last seen is told at the deadline.
func until(t *testing.T, what string, look func() (bool, any)) {
	t.Helper()
	var seen any
	for ends := time.Now().Add(patience); time.Now().Before(ends); time.Sleep(20 * time.Millisecond) {
		var good bool
		if good, seen = look(); good {
			return
		}
	}
	t.Fatalf("not within %v: %s; last seen: %v", patience, what, seen)
}

// cancelled ends with the test.
func cancelled(t *testing.T) context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	return ctx
}

func holder(object *unstructured.Unstructured) string {
	text, _, _ := unstructured.NestedString(object.Object, "spec", "holderIdentity")
	return text
}
