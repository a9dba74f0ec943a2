package clientgo

import (
	"context"
	"encoding/json"
	"sort"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/openapi3"
	"k8s.io/client-go/restmapper"
)

func newDiscovery(t *testing.T, s *server, legacy bool) *discovery.DiscoveryClient {
	t.Helper()
	client, err := discovery.NewDiscoveryClientForConfig(s.config)
	if err != nil {
		t.Fatal(err)
	}
	client.UseLegacyDiscovery = legacy
	return client
}

// The aggregated documents and those of each version tell the same.
func TestDiscovery(t *testing.T) {
	told := map[bool]string{}
	for _, legacy := range []bool{false, true} {
		groups, lists, err := newDiscovery(t, newServer(t), legacy).ServerGroupsAndResources()
		if err != nil {
			t.Fatal(err)
		}
		var lines []string
		for _, one := range groups {
			if one.Name == group {
				lines = append(lines, "preferred "+one.PreferredVersion.GroupVersion)
			}
		}
		for _, list := range lists {
			if !strings.HasPrefix(list.GroupVersion, group+"/") {
				continue
			}
			for _, resource := range list.APIResources {
				sort.Strings(resource.Verbs)
				// The aggregated form names group and version of each resource, and has no hash.
				resource.Group, resource.Version, resource.StorageVersionHash = "", "", ""
				if strings.Contains(resource.Name, "/") {
					resource.SingularName = ""
				}
				text, err := json.Marshal(resource)
				if err != nil {
					t.Fatal(err)
				}
				lines = append(lines, list.GroupVersion+" "+string(text))
			}
		}
		sort.Strings(lines)
		told[legacy] = strings.Join(lines, "\n")
	}
	if told[true] != told[false] || strings.Count(told[true], "\n") != 13 {
		t.Errorf("aggregated:\n%s\neach version:\n%s", told[false], told[true])
	}
}

func TestMapper(t *testing.T) {
	client := newDiscovery(t, newServer(t), false)
	mapper := restmapper.NewShortcutExpander(
		restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(client)), client, func(warning string) { t.Error(warning) })
	for _, name := range []string{"cassandraclusters", "cassandracluster", "cassc", "cassandra"} {
		kind, err := mapper.KindFor(schema.GroupVersionResource{Resource: name})
		if err != nil || kind != clusters.GroupVersion().WithKind("CassandraCluster") {
			t.Errorf("%s: %v, %v", name, kind, err)
		}
	}
	for _, version := range []string{"v1beta1", "v1alpha1"} {
		mapping, err := mapper.RESTMapping(schema.GroupKind{Group: group, Kind: "Pilot"}, version)
		if err != nil || mapping.Resource.Resource != "pilots" || mapping.Scope.Name() != "namespace" {
			t.Errorf("%s: %v, %v", version, mapping, err)
		}
	}
}

func TestOpenAPI(t *testing.T) {
	root := openapi3.NewRoot(newDiscovery(t, newServer(t), false).OpenAPIV3())
	spec, err := root.GVSpec(schema.GroupVersion{Group: group, Version: "v1beta1"})
	if err != nil {
		t.Fatal(err)
	}
	kind := spec.Components.Schemas["com.jetstack.navigator.v1beta1.CassandraCluster"]
	if kind == nil || len(kind.Properties) != 5 {
		t.Errorf("%v", kind)
	}
	path := spec.Paths.Paths["/apis/"+group+"/v1beta1/namespaces/{namespace}/cassandraclusters/{name}"]
	if path == nil || path.Get == nil || path.Patch == nil || path.Delete == nil {
		t.Errorf("%v", path)
	}
}

// The account may do what these tests do, and nothing else.
func TestRights(t *testing.T) {
	client := newServer(t).dynamic(t)
	pilots := leases.GroupVersion().WithResource("pilots")
	if _, err := client.Resource(pilots).Namespace(namespace).List(context.Background(), metav1.ListOptions{}); err == nil || !strings.Contains(err.Error(), "forbidden") {
		t.Errorf("pilots: %v", err)
	}
	if _, err := client.Resource(leases).List(context.Background(), metav1.ListOptions{}); err == nil || !strings.Contains(err.Error(), "forbidden") {
		t.Errorf("leases of all namespaces: %v", err)
	}
}
