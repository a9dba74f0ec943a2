"""The test bed as the end-to-end tests see it: kubectl, conditions to wait for, timed steps, kept logs."""
import contextlib
import fcntl
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BED = Path(os.environ["NAVIGATOR_TESTBED"])
RUN = BED / "run"
LOGS = RUN / "e2e-logs"
KUBECTL = [str(BED / "bin/kubectl"), f"--kubeconfig={RUN / 'admin.kubeconfig'}"]
CTR = ["ctr", "-a", str(RUN / "containerd.sock"), "-n", "k8s.io"]
BEGUN = time.monotonic()
STEPS = []
AWAY = []


class Failed(Exception):
    """A claim that did not hold."""


class Refused(Failed):
    """A command that ended with an error."""


@contextlib.contextmanager
def away(why):
    """While this lasts, a server may be away, and is not missed by wait()."""
    AWAY.append(why)
    yield
    AWAY.remove(why)


def say(text):
    print(f"[{time.monotonic() - BEGUN:7.1f} s] {text}", flush=True)


@contextlib.contextmanager
def step(name):
    """Prints the name, then how long it took."""
    say(f"--- {name}")
    begun = time.monotonic()
    yield
    took = time.monotonic() - begun
    STEPS.append((name, took))
    say(f"    done in {took:.1f} s")


def run(*command, check=True, stdin=None, timeout=120):
    done = subprocess.run([str(part) for part in command], input=stdin, capture_output=True, text=True, timeout=timeout)
    if check and done.returncode != 0:
        raise Refused(f"{' '.join(map(str, command))}\nexit {done.returncode}\n{done.stdout}{done.stderr}")
    return done


def kubectl(*args, check=True, stdin=None, timeout=120):
    """Runs kubectl and returns what it printed."""
    done = run(*KUBECTL, *args, check=check, stdin=stdin, timeout=timeout)
    return done.stdout if check else done


def get(*args):
    """An object, or a list's items, as kubectl reads it; None when it is not there."""
    done = kubectl("get", *args, "-o", "json", check=False)
    if done.returncode != 0:
        if "NotFound" in done.stderr or "not found" in done.stderr:
            return None
        raise Refused(f"kubectl get {' '.join(args)}: {done.stderr.strip()}")
    found = json.loads(done.stdout)
    return found["items"] if found.get("kind", "").endswith("List") else found


def wait(what, condition, deadline=300, every=1.0):
    """Waits until condition() is true; the last thing it saw is in the error.

    What is not there yet is waited for; a server that does not answer is a failure, unless it may be away() or the
    machine was too busy to ask it.
    """
    ends, last = time.monotonic() + deadline, None
    while time.monotonic() < ends:
        try:
            last = condition()
            if last is True or (last and not isinstance(last, str)):
                return last
        except (subprocess.TimeoutExpired, KeyError, TypeError, IndexError) as error:
            last = f"{type(error).__name__}: {error}"
        except Refused as error:
            last = f"{type(error).__name__}: {error}"
            if not AWAY and not re.search("timeout|timed out", last, re.IGNORECASE):
                raise Failed(f"nobody should be away, but while waiting for {what}: {error}") from error
        time.sleep(every)
    raise Failed(f"gave up after {deadline} s waiting for {what}; last seen: {last}")


def claim(what, holds, seen=""):
    """One line of the record; fails unless it holds."""
    if not holds:
        raise Failed(f"not so: {what}; seen: {seen}")
    say(f"    ok: {what}")


def condition(thing, kind):
    """The status of a condition, or None."""
    for entry in (thing or {}).get("status", {}).get("conditions", []):
        if entry["type"] == kind:
            return entry["status"]
    return None


def condition_is(kind, status, *args):
    """For wait(): does an object carry this condition? A string tells what it carries."""
    def check():
        thing = get(*args)
        if condition(thing, kind) == status:
            return True
        seen = [f"{c['type']}={c['status']}/{c.get('reason')}: {c.get('message')}"
                for c in (thing or {}).get("status", {}).get("conditions", [])]
        return f"{' '.join(args)}: {'; '.join(seen) or 'no conditions'}"
    return check


@contextlib.contextmanager
def lock(name):
    """Keeps jobs that run beside each other apart."""
    with open(RUN / f"{name}.lock", "w", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def pids(applet, namespace="navigator", pod=None):
    """Process ids of an applet that is the first process of a running container of a namespace, or of one pod, by this machine's counting."""
    found = []
    labels = f'labels."io.kubernetes.pod.namespace"=={namespace}' + (f',labels."io.kubernetes.pod.name"=={pod}' if pod else "")
    mine = set(run(*CTR, "containers", "ls", "-q", labels).stdout.split())
    for line in run(*CTR, "tasks", "ls").stdout.splitlines()[1:]:
        container, pid, state = line.split()
        if container not in mine:
            continue
        try:
            words = (Path("/proc") / pid / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if state == "RUNNING" and len(words) > 1 and words[0].endswith(b"navigator") and words[1] == applet.encode():
            found.append(int(pid))
    return sorted(found)


def restart(component):
    """Kills a component of the bed and starts it again as it was; it remembers nothing."""
    file = RUN / "pid" / component
    pid = int(file.read_text())
    command = (Path("/proc") / str(pid) / "cmdline").read_bytes().split(b"\0")[:-1]
    os.kill(pid, signal.SIGKILL)
    wait(f"the end of {component}", lambda: ended(pid) or "it runs", 30, every=0.1)
    with open(RUN / f"log/{component}.log", "ab") as log:
        begun = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
    file.write_text(str(begun.pid))


def ended(pid):
    """Is this process gone, or a zombie that nobody asks for?"""
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def keep_logs():
    """Collects what every component said, for a failed run."""
    LOGS.mkdir(parents=True, exist_ok=True)
    for name, args in {
        "objects.txt": ["get", "all,pvc,pv,sa,role,rolebinding,pdb,lease", "-A", "-o", "wide"],
        "navigator.yaml": ["get", "cassandraclusters,elasticsearchclusters,pilots,leaderleases", "-A", "-o", "yaml"],
        "events.txt": ["get", "events", "-A", "--sort-by=.lastTimestamp"],
        "apiservices.yaml": ["get", "apiservice", "v1beta1.navigator.jetstack.io", "v1alpha1.navigator.jetstack.io", "-o", "yaml"],
        "describe.txt": ["describe", "pods", "-A"],
    }.items():
        done = kubectl(*args, check=False)
        (LOGS / name).write_text(done.stdout + done.stderr)
    pods = kubectl("get", "pods", "-A", "-o", "jsonpath={range .items[*]}{.metadata.namespace} {.metadata.name}{'\\n'}{end}", check=False)
    for line in pods.stdout.splitlines():
        namespace, name = line.split()
        for suffix, flag in (("", []), (".previous", ["--previous"])):
            done = kubectl("logs", "-n", namespace, name, "--all-containers", "--prefix", *flag, check=False)
            if done.stdout:
                (LOGS / f"{namespace}.{name}{suffix}.log").write_text(done.stdout)
    for log in (RUN / "log").glob("*.log"):
        (LOGS / log.name).write_bytes(log.read_bytes()[-2_000_000:])
    say(f"logs of every component are in {LOGS}")


def main(job):
    """Runs a job; keeps logs when it fails."""
    try:
        job()
    except Exception as error:  # noqa: BLE001 - everything is reported alike
        say(f"FAILED: {error}")
        keep_logs()
        for log in [log for pods in ("navigator.*", "*.cass-*", "*.es-*") for log in sorted(LOGS.glob(f"{pods}.log"))]:
            tail = log.read_text(errors="replace").splitlines()[-15:]
            print(f"==> {log.name}", *[re.sub(r"^\[[^]]*\] ", "", line)[:400] for line in tail if "audit.k8s.io" not in line], sep="\n")
        sys.exit(1)
    for name, took in STEPS:
        print(f"{took:8.1f} s  {name}")
