"""`kubectl navigator` through a real kube-apiserver: kubectl finds it on the PATH, and it asks and changes as a user would."""
import json
import os
import subprocess
import tarfile

from bed import KUBECTL, ROOT, RUN, claim


class Plugin:
    """The plugin in one namespace, or in all of them (None)."""

    def __init__(self, namespace=None):
        self.namespace = namespace
        self.folder = RUN / f"plugin-{namespace}"
        self.folder.mkdir(exist_ok=True)
        link = self.folder / "kubectl-navigator"
        link.unlink(missing_ok=True)
        link.symlink_to(ROOT / "bin/navigator")

    def run(self, *words, timeout=120):
        environment = {**os.environ, "PATH": f"{self.folder}:{os.environ['PATH']}", "KUBECONFIG": str(RUN / "admin.kubeconfig")}
        command = [KUBECTL[0], "navigator", *words[:1], *(["-n", self.namespace] if self.namespace else []), *words[1:]]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=timeout)

    def says(self, code, *words):
        """What it prints, once it ended with `code`."""
        done = self.run(*words)
        claim(f"kubectl navigator {' '.join(words)} ends with {code}", done.returncode == code,
              f"exit {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout

    def looks(self, name, nodes):
        """What asks only: of a cluster that is Ready."""
        screen = self.says(0, "status", name)
        claim("status is one screen about the cluster and its nodes", name in screen and all(node in screen for node in nodes), screen)
        json.loads(self.says(0, "status", name, "-o", "json"))
        said = self.says(0, "logs", name, "--tail", "1").splitlines()
        shown = [f"[{node.partition(f'-{name}-')[2]}]" for node in nodes]
        behind = sorted(line.split()[0] for line in said)
        claim("logs has a line of each node, behind its name where there are several", len(said) == 1 if len(nodes) == 1 else behind == shown, said)
        self.says(0, "predicates", name)
        archive = self.folder / "report.tar.gz"
        self.says(0, "report", name, "-o", str(archive))
        with tarfile.open(archive) as report:
            files = report.getnames()
            errors = [file for file in files if file.endswith("errors.txt")]
            claim("report could read everything", not errors, [report.extractfile(file).read() for file in errors])
            claim("report holds each node's log", all(any(node in file and "log" in file for file in files) for node in nodes), files)

    def changes(self, name, read):
        """Pause, and all the way back. `read` gets the cluster."""
        self.says(0, "pause", name)
        claim("pause writes spec.paused", read()["spec"].get("paused") is True, read()["spec"])
        self.says(0, "resume", name)
        claim("resume takes it back", not read()["spec"].get("paused"), read()["spec"])

    def give_up(self, cluster, node, data):
        """As a person types it. While the Pilot's last word is that the node serves, for up to 90 s, it is refused."""
        def taken():
            done = self.run("give-up", cluster.name, node, "--data", data)
            return done.returncode == 0 or done.stdout + done.stderr
        cluster.wait("kubectl navigator give-up", taken, every=5)
