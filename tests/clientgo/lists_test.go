package clientgo

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/pager"
	watchtools "k8s.io/client-go/tools/watch"
)

// Pages show one moment, whatever is written meanwhile.
func TestPager(t *testing.T) {
	s := newServer(t)
	f := newFleet(t, s, "pager")
	f.create(upTo(60)...)
	pages, next := 0, 60
	var names []string
	list := func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
		page, err := f.client.List(ctx, f.only(options))
		if err == nil {
			pages++
			f.remove(next - 60)
			f.create(next)
			f.hold(59, fmt.Sprint(next))
			next++
		}
		return page, err
	}
	p := pager.New(list)
	p.PageSize, p.PageBufferSize = 7, 0
	err := p.EachListItem(context.Background(), metav1.ListOptions{}, func(object runtime.Object) error {
		item := object.(*unstructured.Unstructured)
		names = append(names, item.GetName())
		if item.GetName() == f.name(59) && holder(item) != "nobody" {
			t.Errorf("a page shows a later moment: %v", item)
		}
		return nil
	})
	if err != nil || pages != 9 || len(names) != 60 || names[0] != f.name(0) || names[59] != f.name(59) {
		t.Errorf("%v; %d pages, %d names: %v", err, pages, len(names), names)
	}
	rest := s.reads()
	if last := rest[len(rest)-1]; last.query.Get("continue") == "" || last.query.Get("limit") != "7" {
		t.Errorf("not by pages: %v", last)
	}
}

func TestPagesByManyWhileOthersWrite(t *testing.T) {
	f := newFleet(t, newServer(t), "crowd")
	f.create(upTo(40)...)
	stop, written := make(chan struct{}), make(chan error, 1)
	go func() {
		for turn := 0; ; turn++ {
			select {
			case <-stop:
				written <- nil
				return
			default:
				patch := fmt.Sprintf(`{"spec": {"leaseTransitions": %d}}`, turn+1)
				_, err := f.client.Patch(context.Background(), f.name(turn%40), types.MergePatchType, []byte(patch), metav1.PatchOptions{})
				if err != nil {
					written <- err
					return
				}
			}
		}
	}()
	var readers sync.WaitGroup
	for range 4 {
		readers.Add(1)
		go func() {
			defer readers.Done()
			for range 5 {
				p := pager.New(func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
					return f.client.List(ctx, f.only(options))
				})
				p.PageSize = 9
				count := 0
				err := p.EachListItem(context.Background(), metav1.ListOptions{}, func(runtime.Object) error { count++; return nil })
				if err != nil || count != 40 {
					t.Errorf("%d leases, %v", count, err)
				}
			}
		}()
	}
	readers.Wait()
	close(stop)
	if err := <-written; err != nil {
		t.Error(err)
	}
}

// A token whose moment the server has forgotten is answered by 410, and the pager lists all at once then.
func TestExpiredToken(t *testing.T) {
	s := newServer(t)
	f := newFleet(t, s, "expired")
	f.create(upTo(10)...)
	first, err := f.client.List(context.Background(), f.only(metav1.ListOptions{Limit: 3}))
	if err != nil || first.GetContinue() == "" {
		t.Fatal(first, err)
	}
	forget(t, s)
	_, err = f.client.List(context.Background(), f.only(metav1.ListOptions{Limit: 3, Continue: first.GetContinue()}))
	if !apierrors.IsResourceExpired(err) {
		t.Fatalf("the moment was not forgotten: %v", err)
	}
	fresh := err.(apierrors.APIStatus).Status().ListMeta.Continue
	rest, err := f.client.List(context.Background(), f.only(metav1.ListOptions{Continue: fresh}))
	if err != nil || len(rest.Items) != 7 {
		t.Errorf("with the fresh token: %v, %v", rest, err)
	}
	pages := 0
	p := pager.New(func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
		pages++
		if pages == 2 {
			options.Continue = first.GetContinue()
		}
		return f.client.List(ctx, f.only(options))
	})
	p.PageSize = 3
	all, paged, err := p.List(context.Background(), metav1.ListOptions{})
	whole, isWhole := all.(*unstructured.UnstructuredList)
	if err != nil || !paged || !isWhole || len(whole.Items) != 10 || pages != 3 {
		t.Errorf("%v, paged: %v, %d pages, %T", err, paged, pages, all)
	}
	// A watch from that moment is over as well.
	stream, err := f.client.Watch(context.Background(), f.only(metav1.ListOptions{ResourceVersion: first.GetResourceVersion()}))
	if err == nil {
		event := <-stream.ResultChan()
		stream.Stop()
		err = apierrors.FromObject(event.Object)
	}
	if !apierrors.IsResourceExpired(err) && !apierrors.IsGone(err) {
		t.Errorf("a watch from a forgotten moment: %v", err)
	}
}

// forget writes until the server has dropped the oldest changes of its history: large clusters, more bytes than the store's log keeps, and
// more changes of leases than the cache remembers.
func forget(t *testing.T, s *server) {
	t.Helper()
	const writers = 4
	large, small := newFleet(t, s, "large"), newFleet(t, s, "small")
	large.client = s.dynamic(t).Resource(clusters).Namespace(namespace)
	client := newDiscovery(t, s, false).RESTClient()
	patch := func(plural, name, body string) error {
		// The client asks for a table without objects, so that the answers stay small.
		return client.Patch(types.MergePatchType).AbsPath("/apis", group, "v1beta1", "namespaces", namespace, plural, name).
			SetHeader("Accept", "application/json;as=Table;g=meta.k8s.io;v=v1").Param("includeObject", "None").
			Body([]byte(body)).Do(context.Background()).Error()
	}
	var all sync.WaitGroup
	write := func(plural, name string, size, writes int) {
		all.Add(1)
		go func() {
			defer all.Done()
			err := patch(plural, name, fmt.Sprintf(`{"metadata": {"annotations": {"text": %q}}}`, strings.Repeat("x", size)))
			for turn := 0; turn < writes && err == nil; turn++ {
				err = patch(plural, name, fmt.Sprintf(`{"metadata": {"annotations": {"turn": "%d"}}}`, turn+1))
			}
			if err != nil {
				t.Error(err)
			}
		}()
	}
	for number := range writers {
		object := cluster(large.name(number), "large")
		if _, err := large.client.Create(context.Background(), object, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		small.create(number)
		write(clusters.Resource, large.name(number), 250_000, 280)
		write(leases.Resource, small.name(number), 14_000, 320)
	}
	all.Wait()
}

// A RetryWatcher tells each event once and in order, though the server ends its watches again and again.
func TestRetryWatcher(t *testing.T) {
	s := newServer(t)
	f := newFleet(t, s, "retry")
	f.create(0)
	begin, err := f.client.Get(context.Background(), f.name(0), metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	second := int64(1)
	short := &cache.ListWatch{WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
		options.TimeoutSeconds = &second
		return f.client.Watch(ctx, f.only(options))
	}}
	watcher, err := watchtools.NewRetryWatcherWithContext(cancelled(t), begin.GetResourceVersion(), short)
	if err != nil {
		t.Fatal(err)
	}
	watches := func() int {
		count := 0
		for _, one := range s.reads() {
			if one.isWatch() {
				count++
			}
		}
		return count
	}
	for turn := range 9 {
		wanted := fmt.Sprint(turn)
		f.hold(0, wanted)
		event, open := <-watcher.ResultChan()
		if !open || event.Type != watch.Modified || holder(event.Object.(*unstructured.Unstructured)) != wanted {
			t.Fatalf("turn %d: %v", turn, event)
		}
		if turn%3 == 2 {
			more := watches() + 1
			until(t, "another watch", func() (bool, any) { return watches() >= more, s.reads() })
		}
	}
}
