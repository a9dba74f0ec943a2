//! What is rendered is what the program can run with: each role starts as the kubelet would start
//! it, with exactly the arguments, variables and folders of its Deployment, beside a scripted
//! kube-apiserver. It listens where Services, monitors and network policies say, and shows a
//! certificate of the CA that kube-apiserver and Prometheus are told.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write,
    fs::{self, File},
    net::{IpAddr, SocketAddr},
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use base64::{Engine, prelude::BASE64_STANDARD};
use navigator::runtime::metric_catalogue::MetricDescription;
use serde_json::{Value, json};

use super::{
    BED, Objects, example, helm, merge,
    support::{
        client::{Client, SERVICE},
        loopback::own,
        pki::{Ca, Pem},
        server::World,
        told::assert_described,
        wait::until,
    },
};

const PATIENCE: Duration = Duration::from_secs(60);

/// Secrets by name, each with its files.
type Secrets = BTreeMap<String, BTreeMap<String, String>>;

/// A process of ours, killed when dropped.
struct Running {
    child: Child,
    log: PathBuf,
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

impl Running {
    fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Ports that the process listens on.
    fn ports(&self) -> BTreeSet<u16> {
        let process = PathBuf::from(format!("/proc/{}", self.child.id()));
        let sockets: BTreeSet<_> = fs::read_dir(process.join("fd"))
            .unwrap()
            .filter_map(|entry| fs::read_link(entry.ok()?.path()).ok())
            .map(|target| target.display().to_string())
            .collect();
        let mut ports = BTreeSet::new();
        for table in ["net/tcp", "net/tcp6"] {
            for line in fs::read_to_string(process.join(table)).unwrap().lines().skip(1) {
                let fields: Vec<_> = line.split_whitespace().collect();
                // The state LISTEN.
                if fields[3] == "0A" && sockets.contains(&format!("socket:[{}]", fields[9])) {
                    let (_, port) = fields[1].rsplit_once(':').unwrap();
                    ports.insert(u16::from_str_radix(port, 16).unwrap());
                }
            }
        }
        ports
    }
}

#[expect(clippy::disallowed_methods, reason = "a test runs other programs")]
fn command(program: impl AsRef<std::ffi::OsStr>) -> Command {
    Command::new(program)
}

fn start(mut command: Command, log: PathBuf) -> Running {
    let output = File::create(&log).unwrap();
    command.stdin(Stdio::null()).stdout(output.try_clone().unwrap()).stderr(output);
    let child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    Running { child, log }
}

/// Puts the files there as the kubelet does: names lead into a folder that can be swapped at once.
fn project(folder: &Path, files: &BTreeMap<String, String>) {
    let data = folder.join("..2026_01_01");
    fs::create_dir_all(&data).unwrap();
    symlink("..2026_01_01", folder.join("..data")).unwrap();
    for (name, text) in files {
        fs::write(data.join(name), text).unwrap();
        symlink(format!("..data/{name}"), folder.join(name)).unwrap();
    }
}

/// The only container of a Deployment, and its pod.
fn pod<'a>(objects: &'a Objects, deployment: &str) -> (&'a Value, &'a Value) {
    let spec = &objects[&format!("Deployment navigator {deployment}")]["spec"]["template"]["spec"];
    assert_eq!(spec["containers"].as_array().unwrap().len(), 1);
    (spec, &spec["containers"][0])
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("{value} is no text"))
}

/// Starts what the Deployment says, where its volumes are mounted and nothing else is. `more` are
/// variables in the place of what only a pod has: an address and an account of its own.
fn start_pod(
    world: &World,
    objects: &Objects,
    deployment: &str,
    secrets: &Secrets,
    more: &[(&str, String)],
) -> Running {
    let (spec, container) = pod(objects, deployment);
    let mut script = String::new();
    let mut hidden = BTreeSet::new();
    for mount in container["volumeMounts"].as_array().into_iter().flatten() {
        let volumes = spec["volumes"].as_array().unwrap();
        let volume = volumes.iter().find(|volume| volume["name"] == mount["name"]);
        let volume = volume.unwrap_or_else(|| panic!("no volume for {mount}"));
        let folder = world.folder.path().join(format!("volume-{}", text(&mount["name"])));
        fs::create_dir_all(&folder).unwrap();
        if let Some(secret) = volume.get("secret") {
            let name = text(&secret["secretName"]);
            let files = secrets.get(name).unwrap_or_else(|| panic!("no Secret {name}: {volume}"));
            project(&folder, files);
        }
        let at = text(&mount["mountPath"]);
        // A mount hides what this machine has there.
        let above = if at.starts_with("/etc/") { "/etc" } else { at.rsplit_once('/').unwrap().0 };
        if hidden.insert(above) {
            writeln!(script, "mount -t tmpfs none {above}").unwrap();
        }
        writeln!(script, "mkdir -p {at}\nmount --bind {} {at}", folder.display()).unwrap();
    }
    let mut environment: BTreeMap<String, String> = BTreeMap::new();
    for variable in container["env"].as_array().unwrap() {
        let value = match variable["valueFrom"]["fieldRef"]["fieldPath"].as_str() {
            None => text(&variable["value"]),
            Some("metadata.namespace") => "navigator",
            Some("metadata.name") => "a-pod",
            Some(other) => panic!("{other} is not known"),
        };
        environment.insert(text(&variable["name"]).to_owned(), value.to_owned());
    }
    environment.insert("NAVIGATOR_KUBECONFIG".into(), world.path("kubeconfig"));
    // The CAs that this machine trusts are hidden with its /etc, and a client needs some.
    fs::write(world.path("roots"), &world.client_ca.pem).unwrap();
    environment.insert("SSL_CERT_FILE".into(), world.path("roots"));
    for (name, value) in more {
        let before = environment.insert((*name).to_owned(), value.clone());
        assert_eq!(before, None, "{name} is the test's own");
    }
    let mut unshare = command("unshare");
    if !nix::unistd::geteuid().is_root() {
        unshare.args(["--user", "--map-root-user"]);
    }
    script += "exec env -i \"$@\"";
    unshare.args(["--mount", "--", "sh", "-ec", &script, "sh"]);
    unshare.args(environment.iter().map(|(name, value)| format!("{name}={value}")));
    unshare.arg(env!("CARGO_BIN_EXE_navigator"));
    unshare.args(container["args"].as_array().unwrap().iter().map(text));
    start(unshare, world.folder.path().join(format!("{deployment}.log")))
}

/// Number of a container's port of this name.
fn named_port(container: &Value, name: &Value) -> u16 {
    let ports = container["ports"].as_array().unwrap();
    let port = ports.iter().find(|port| port["name"] == *name);
    let port = port.unwrap_or_else(|| panic!("no port {name} of {container}"));
    u16::try_from(port["containerPort"].as_u64().unwrap()).unwrap()
}

/// Whatever leads to the pods of a Deployment leads to a port that the process listens on, and the
/// network policy lets through all that lead there and no other.
fn assert_ports(objects: &Objects, deployment: &str, listening: &BTreeSet<u16>) {
    let (_, container) = pod(objects, deployment);
    let policy = &objects[&format!("NetworkPolicy navigator {deployment}")]["spec"];
    let selector = &objects[&format!("Deployment navigator {deployment}")]["spec"]["selector"];
    assert_eq!(policy["podSelector"], *selector);
    let let_in = policy["ingress"][0]["ports"].as_array().unwrap();
    let let_in: BTreeSet<_> =
        let_in.iter().map(|port| named_port(container, &port["port"])).collect();
    assert_eq!(let_in, *listening, "{policy}");
    for probe in ["startupProbe", "livenessProbe", "readinessProbe"] {
        if let Some(probe) = container.get(probe) {
            assert!(listening.contains(&named_port(container, &probe["httpGet"]["port"])));
        }
    }
    if let Some(monitor) = objects.get(&format!("PodMonitor navigator {deployment}")) {
        assert_eq!(monitor["spec"]["selector"], *selector);
        let port = &monitor["spec"]["podMetricsEndpoints"][0]["port"];
        assert!(listening.contains(&named_port(container, port)));
    }
    if let Some(service) = objects.get(&format!("Service navigator {deployment}")) {
        assert_eq!(service["spec"]["selector"], selector["matchLabels"]);
        let port = &service["spec"]["ports"][0];
        assert!(listening.contains(&named_port(container, &port["targetPort"])));
        let monitor = &objects[&format!("ServiceMonitor navigator {deployment}")]["spec"];
        assert_eq!(monitor["endpoints"][0]["port"], port["name"]);
        for version in ["v1beta1", "v1alpha1"] {
            let name = format!("APIService - {version}.navigator.jetstack.io");
            let asked = &objects[&name]["spec"]["service"];
            let wanted =
                json!({"namespace": "navigator", "name": deployment, "port": port["port"]});
            assert_eq!(*asked, wanted);
        }
    }
}

/// The rendered objects, with everything that leads to pods.
fn objects(mut values: Value) -> Objects {
    merge(
        &mut values,
        &json!({"monitoring": {"enabled": true}, "networkPolicy": {"enabled": true}}),
    );
    helm(&values)
}

fn decoded(value: &Value) -> String {
    String::from_utf8(BASE64_STANDARD.decode(text(value)).unwrap()).unwrap()
}

/// Where a server of this test listens: its port is the rendered one, so its address is its own.
struct Place {
    address: IpAddr,
    world: World,
}

impl Place {
    async fn new(number: u8) -> Self {
        Self { address: own([127, 0, 220, number]), world: World::new().await }
    }

    /// The API server of these objects, ready. Its certificate is checked against `ca`, or against
    /// the CA that the server has made itself and told kube-apiserver.
    async fn apiserver(&self, objects: &Objects, secrets: &Secrets, ca: Option<&str>) -> String {
        let more = [("NAVIGATOR_BIND_ADDRESS", self.address.to_string())];
        let deployment = "navigator-apiserver";
        let running = start_pod(&self.world, objects, deployment, secrets, &more);
        let (_, container) = pod(objects, deployment);
        let told = async || {
            let bundle = ca.map(str::to_owned).or_else(|| self.world.ca_bundle("v1beta1"));
            bundle.ok_or_else(|| running.log())
        };
        let ca = until("a CA bundle", PATIENCE, told).await;
        for probe in ["startupProbe", "livenessProbe", "readinessProbe"] {
            let asked = &container[probe]["httpGet"];
            assert_eq!(asked["scheme"], "HTTPS");
            let port = named_port(container, &asked["port"]);
            let request = || http::Request::get(text(&asked["path"])).body(String::new()).unwrap();
            until(probe, PATIENCE, async || {
                let client = Client::new(SocketAddr::new(self.address, port), None, Some(&ca));
                match client.send(request()).await {
                    Ok(reply) if reply.status == 200 => Ok(()),
                    other => Err(format!("{other:?}\n{}", running.log())),
                }
            })
            .await;
        }
        assert_ports(objects, deployment, &running.ports());
        self.is_scraped(objects, &ca).await;
        ca
    }

    /// Prometheus reads the metrics in the way that the ServiceMonitor says: with its own token,
    /// whose account may get the path.
    async fn is_scraped(&self, objects: &Objects, ca: &str) {
        let deployment = "navigator-apiserver";
        let monitor = &objects[&format!("ServiceMonitor navigator {deployment}")]["spec"];
        let endpoint = &monitor["endpoints"][0];
        assert_eq!(endpoint["scheme"], "https");
        assert!(text(&endpoint["bearerTokenFile"]).ends_with("/serviceaccount/token"));
        self.world.kube.add_token("scraper", json!({"username": "prometheus"}));
        self.world.kube.allow("prometheus", "get", "/metrics");
        let port = named_port(pod(objects, deployment).1, &json!("https"));
        let client = Client::new(SocketAddr::new(self.address, port), None, Some(ca));
        let ask = http::Request::get("/metrics").header("authorization", "Bearer scraper");
        let reply = client.send(ask.body(String::new()).unwrap()).await.unwrap();
        assert_eq!(reply.status, 200, "{reply:?}");
        let scheme = navigator::database::build_scheme(navigator::databases::ALL);
        assert_described(&reply.body, &navigator::apiserver::metrics_catalogue(scheme));
    }
}

/// The Secret by which Prometheus is told to know the API server.
fn trusted_by_prometheus(objects: &Objects) -> &str {
    let monitor = &objects["ServiceMonitor navigator navigator-apiserver"]["spec"]["endpoints"][0];
    assert_eq!(monitor["tlsConfig"]["serverName"], SERVICE);
    let secret = &monitor["tlsConfig"]["ca"]["secret"];
    assert_eq!(secret["key"], "ca.crt");
    text(&secret["name"])
}

fn secret(ca: &Ca, pem: Pem) -> BTreeMap<String, String> {
    let files = [("ca.crt", ca.pem.clone()), ("tls.crt", pem.certificate), ("tls.key", pem.key)];
    files.map(|(name, text)| (name.to_owned(), text)).into()
}

#[tokio::test]
async fn an_api_server_with_its_own_certificate_runs_as_rendered() {
    let place = Place::new(1).await;
    let values = json!({"log": {"filter": "debug", "format": "text"}});
    let objects = objects(values);
    let ca = place.apiserver(&objects, &Secrets::new(), None).await;
    let path = format!("/api/v1/namespaces/navigator/secrets/{}", trusted_by_prometheus(&objects));
    let own = place.world.kube.get(&path).unwrap_or_else(|| panic!("no {path}"));
    assert_eq!(decoded(&own["data"]["ca.crt"]), ca);
}

#[tokio::test]
async fn an_api_server_with_a_given_certificate_runs_as_rendered() {
    let (place, ca) = (Place::new(2).await, Ca::new("given-ca"));
    let mut values = example("own-certificate-values.yaml");
    values["tls"]["caBundle"] = json!(BASE64_STANDARD.encode(&ca.pem));
    let objects = objects(values);
    for version in ["v1beta1", "v1alpha1"] {
        let spec = &objects[&format!("APIService - {version}.navigator.jetstack.io")]["spec"];
        assert_eq!(decoded(&spec["caBundle"]), ca.pem);
    }
    let name = trusted_by_prometheus(&objects).to_owned();
    let files = secret(&ca, ca.serving(&[SERVICE.to_owned()]));
    place.apiserver(&objects, &[(name, files)].into(), Some(&ca.pem)).await;
    assert_eq!(place.world.ca_bundle("v1beta1"), None, "the server wrote over a given CA");
}

#[tokio::test]
async fn an_api_server_with_a_certificate_of_cert_manager_runs_as_rendered() {
    for (number, values) in [
        (3, example("cert-manager-values.yaml")),
        (4, json!({"tls": {"certManager": {"enabled": true}}})),
    ] {
        let (place, ca) = (Place::new(number).await, Ca::new("issuing-ca"));
        let objects = objects(values);
        let certificate = &objects["Certificate navigator navigator-apiserver"]["spec"];
        for version in ["v1beta1", "v1alpha1"] {
            let service = &objects[&format!("APIService - {version}.navigator.jetstack.io")];
            let from = &service["metadata"]["annotations"]["cert-manager.io/inject-ca-from"];
            assert_eq!(*from, "navigator/navigator-apiserver");
            assert_eq!(service["spec"].get("caBundle"), None);
        }
        let names = certificate["dnsNames"].as_array().unwrap().iter();
        let names: Vec<_> = names.map(|name| text(name).to_owned()).collect();
        let name = text(&certificate["secretName"]).to_owned();
        assert_eq!(trusted_by_prometheus(&objects), name);
        let secrets = [(name, secret(&ca, ca.serving(&names)))].into();
        place.apiserver(&objects, &secrets, Some(&ca.pem)).await;
        assert_eq!(place.world.ca_bundle("v1beta1"), None, "the server wrote over the injector");
    }
}

#[tokio::test]
async fn an_api_server_with_etcd_runs_as_rendered() {
    let (place, ca) = (Place::new(5).await, Ca::new("etcd-ca"));
    let host = place.address.to_string();
    let pem = ca.serving(std::slice::from_ref(&host));
    let files = secret(&ca, pem);
    let folder = place.world.folder.path().join("etcd");
    project(&folder, &files);
    let (client, peer) = (format!("https://{host}:2379"), format!("http://{host}:2380"));
    let file = |name: &str| folder.join(name).display().to_string();
    let mut etcd = command(BED.join("bin/etcd"));
    etcd.args(["--data-dir", &file("data"), "--unsafe-no-fsync", "--client-cert-auth"])
        .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
        .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
        .args(["--initial-cluster", &format!("default={peer}")])
        .args(["--cert-file", &file("tls.crt"), "--key-file", &file("tls.key")])
        .args(["--trusted-ca-file", &file("ca.crt")]);
    let etcd = start(etcd, place.world.folder.path().join("etcd.log"));

    let mut values = example("etcd-values.yaml");
    values["store"]["etcd"]["servers"] = json!([client]);
    values["networkPolicy"] = json!({"kubeAPIServers": ["10.0.0.0/28"]});
    let objects = objects(values);
    let name = text(&pod(&objects, "navigator-apiserver").0["volumes"][0]["secret"]["secretName"]);
    place.apiserver(&objects, &[(name.to_owned(), files)].into(), None).await;

    let egress = &objects["NetworkPolicy navigator navigator-apiserver"]["spec"]["egress"];
    let ports = &egress[2]["ports"];
    assert_eq!(*ports, json!([{"port": 2379, "protocol": "TCP"}]), "{egress}");
    assert!(etcd.ports().contains(&2379), "{}", etcd.log());
}

#[tokio::test]
async fn an_api_server_that_speaks_with_few_runs_as_rendered() {
    let place = Place::new(6).await;
    place.apiserver(&objects(example("closed-values.yaml")), &Secrets::new(), None).await;
}

#[tokio::test]
async fn a_controller_runs_as_rendered() {
    let place = Place::new(7).await;
    let mut values = example("closed-values.yaml");
    values["log"] = json!({"filter": "navigator=debug,warn", "format": "json"});
    values["controller"] = json!({
        "leaderElection": {
            "leaseDurationSeconds": 30, "renewDeadlineSeconds": 20, "retryPeriodSeconds": 5,
        },
        "extraArgs": ["--status-page=nobody"],
    });
    let described = navigator::controller::metrics_catalogue();
    runs_as_rendered(&place, &objects(values), "controller", &described).await;
}

#[tokio::test]
async fn a_coordinator_runs_as_rendered() {
    let place = Place::new(8).await;
    let mut values = example("closed-values.yaml");
    values["clusterManager"] = json!({"enabled": true, "enableClusterUpgrade": true});
    let described = navigator::coordinator::metrics_catalogue();
    runs_as_rendered(&place, &objects(values), "coordinator", &described).await;
}

/// Starts a role that listens for probes and metrics alone.
async fn runs_as_rendered(
    place: &Place,
    objects: &Objects,
    role: &str,
    described: &[MetricDescription],
) {
    let deployment = &format!("navigator-{role}");
    let (_, container) = pod(objects, deployment);
    let monitor = &objects[&format!("PodMonitor navigator {deployment}")]["spec"];
    let port = named_port(container, &monitor["podMetricsEndpoints"][0]["port"]);
    let address = SocketAddr::new(place.address, port);
    let more = [("NAVIGATOR_ADMIN_ADDRESS", address.to_string())];
    let running = start_pod(&place.world, objects, deployment, &Secrets::new(), &more);
    let mut page = String::new();
    for path in [text(&container["livenessProbe"]["httpGet"]["path"]), "/metrics"] {
        page = until(path, PATIENCE, async || {
            get(address, path).await.map_err(|seen| format!("{seen}\n{}", running.log()))
        })
        .await;
    }
    assert_described(&page, described);
    assert_ports(objects, deployment, &running.ports());
    // Where the role would listen without the variable.
    let command = navigator::cli::build_command(navigator::databases::ALL);
    let command = command.find_subcommand(role).unwrap();
    let flag = command.get_arguments().find(|arg| arg.get_id() == "admin_address").unwrap();
    let default = flag.get_default_values()[0].to_str().unwrap();
    assert_eq!(default.parse::<SocketAddr>().unwrap().port(), port);
}

#[test]
fn a_page_that_is_not_as_described_is_found() {
    let described = navigator::controller::metrics_catalogue();
    let page = "navigator_build_info{version=\"1\"} 1\nnavigator_controller_leader 0\n\
                navigator_controller_queue_depth 0\nnavigator_controller_leader_transitions 0\n";
    assert_described(page, &described);
    for (from, to) in [("_depth", "_width"), ("{version", "{release"), ("{version=\"1\"}", "")] {
        let other = page.replace(from, to);
        let found = std::panic::catch_unwind(|| assert_described(&other, &described));
        assert!(found.is_err(), "{other}");
    }
}

/// The body of what is answered with 200.
async fn get(address: SocketAddr, path: &str) -> Result<String, String> {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let failed = |error: std::io::Error| error.to_string();
    let mut stream = tokio::net::TcpStream::connect(address).await.map_err(failed)?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.map_err(failed)?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.map_err(failed)?;
    match answer.split_once("\r\n\r\n") {
        Some((head, body)) if head.starts_with("HTTP/1.1 200 ") => Ok(body.to_owned()),
        _ => Err(answer),
    }
}
