//! Services of a cluster: those that the database asks for, and one for the pods of each pool.

use k8s_openapi::{
    api::core::v1::{Service, ServicePort, ServiceSpec},
    apimachinery::pkg::util::intstr::IntOrString,
};

use super::{
    DesiredObject, Labels, ObjectSettings, build_metadata, cluster_labels, pool_labels,
    selector_labels,
};
use crate::{
    api::{names, v1beta1::ServiceTemplate},
    controller::desired_state::{self, DesiredCluster, DesiredPool, ServiceExposure},
};

/// Builds the Services of a cluster beside those of the pools.
pub(super) fn build_services(
    desired: &DesiredCluster,
    settings: &ObjectSettings,
) -> Vec<DesiredObject> {
    let desired_services =
        (desired.database.services)(desired).into_iter().filter(|service| service.wanted);
    desired_services
        .map(|cluster_service| {
            DesiredObject::from_object(&build_service(desired, settings, &cluster_service))
        })
        .collect()
}

fn build_service(
    desired: &DesiredCluster,
    settings: &ObjectSettings,
    service: &desired_state::ClusterService,
) -> Service {
    let desired_state::ClusterService { name, ports, reach, marks, wanted: _ } = service;
    let with_marks = |mut map: Labels| {
        map.extend(marks.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())));
        map
    };
    let (labels, selector) =
        (with_marks(cluster_labels(desired)), with_marks(selector_labels(desired, None)));
    let spec = ServiceSpec {
        selector: Some(selector),
        ports: Some(service_ports(desired, ports)),
        ..ServiceSpec::default()
    };
    match reach {
        ServiceExposure::Client => {
            let template = desired.services.client.clone().unwrap_or_default();
            client_service(desired, settings, name, template, spec)
        }
        ServiceExposure::AllPods => {
            let spec = ServiceSpec { publish_not_ready_addresses: Some(true), ..spec };
            headless_service(desired, settings, name, labels, spec)
        }
        ServiceExposure::Pods => headless_service(desired, settings, name, labels, spec),
    }
}

/// Builds the Service that gives each pod of a pool its DNS name, ready or not: peers must find a
/// node that joins.
pub(super) fn pods_service(
    desired: &DesiredCluster,
    settings: &ObjectSettings,
    pool: &DesiredPool,
) -> DesiredObject {
    let ports: Vec<_> = desired.database.names.ports.iter().map(|(name, _)| *name).collect();
    let spec = ServiceSpec {
        selector: Some(selector_labels(desired, Some(pool))),
        ports: Some(service_ports(desired, &ports)),
        publish_not_ready_addresses: Some(true),
        ..ServiceSpec::default()
    };
    let (name, labels) = (names::pods_service(&pool.set), pool_labels(desired, pool));
    DesiredObject::from_object(&headless_service(desired, settings, &name, labels, spec))
}

fn headless_service(
    desired: &DesiredCluster,
    settings: &ObjectSettings,
    name: &str,
    labels: Labels,
    spec: ServiceSpec,
) -> Service {
    Service {
        metadata: build_metadata(desired, settings, name, labels, Labels::new()),
        spec: Some(ServiceSpec {
            type_: Some("ClusterIP".to_owned()),
            cluster_ip: Some("None".to_owned()),
            ..spec
        }),
        status: None,
    }
}

fn client_service(
    desired: &DesiredCluster,
    settings: &ObjectSettings,
    name: &str,
    template: ServiceTemplate,
    spec: ServiceSpec,
) -> Service {
    let ServiceTemplate {
        type_,
        mut labels,
        annotations,
        load_balancer_class,
        load_balancer_source_ranges,
        external_traffic_policy,
    } = template;
    labels.extend(cluster_labels(desired));
    let ranges = load_balancer_source_ranges;
    Service {
        metadata: build_metadata(desired, settings, name, labels, annotations),
        spec: Some(ServiceSpec {
            type_: Some(type_.unwrap_or_else(|| "ClusterIP".to_owned())),
            load_balancer_class,
            load_balancer_source_ranges: (!ranges.is_empty()).then_some(ranges),
            external_traffic_policy,
            ..spec
        }),
        status: None,
    }
}

fn service_ports(desired: &DesiredCluster, port_names: &[&str]) -> Vec<ServicePort> {
    let ports = desired.database.names.ports.iter().filter(|(name, _)| port_names.contains(name));
    ports
        .map(|(name, port)| ServicePort {
            name: Some((*name).to_owned()),
            port: i32::from(*port),
            target_port: Some(IntOrString::Int(i32::from(*port))),
            protocol: Some("TCP".to_owned()),
            ..ServicePort::default()
        })
        .collect()
}
