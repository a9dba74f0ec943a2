"""The test bed as the end-to-end tests see it: kubectl, conditions to wait for, timed steps, kept logs.

Owns how a job ends: with the seconds of its steps, or with the line `JOB FAILED: first failure`; and that a pod of Navigator that was restarted
without the job having meant it is a failure.
"""
import contextlib
import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import traceback
from datetime import datetime, timezone
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BED = Path(os.environ["NAVIGATOR_TESTBED"])
RUN = BED / "run"
# The bed goes with its run; what a failed job leaves stays here (run.sh).
LOGS = Path(os.environ.get("NAVIGATOR_LOGS", BED / "logs"))
JOB = Path(sys.argv[0]).stem
# Runs of one job whose logs are kept.
KEPT = 3
KUBECTL = [str(BED / "bin/kubectl"), f"--kubeconfig={RUN / 'admin.kubeconfig'}"]
# The plugin starts the kubectl of its PATH; a machine may have none.
os.environ["PATH"] = f"{BED / 'bin'}:{os.environ['PATH']}"
CTR = ["ctr", "-a", str(RUN / "containerd.sock"), "-n", "k8s.io"]
BEGUN, BEGUN_AT = time.monotonic(), time.time()
STEPS = []
AWAY = []
# Times of the clock between which servers might be away.
MEANT = []
# Seconds in a row in which the API may turn requests away without being missed, on a machine that is busy with more than the bed.
HICCUP = 30
# What kubectl says where a server could not be reached, or turned the request away before it did anything.
TURNED_AWAY = re.compile(r"ServiceUnavailable|unable to handle the request|connection refused|no route to host|doesn't have a resource type|"
                         r"unable to retrieve the complete list of server APIs|etcdserver: (leader changed|no leader|request timed out)")
# The same where the request may have been carried out: not for what must not be done twice.
CUT_OFF = re.compile(r"TLS handshake timeout|unexpected EOF|: EOF|connection reset|connection lost|context deadline exceeded|request timed out|Timeout:")
# How often and for how long in a row the API turned requests away, and restarts that nobody meant.
HICCUPS, LONGEST, RESTARTS = [0], [0.0], {}


class Failed(Exception):
    """A claim that did not hold."""


class Refused(Failed):
    """A command that ended with an error."""


class Stopped(BaseException):
    """The job is asked to end."""


@contextlib.contextmanager
def away(why):
    """While this lasts, servers may be away and be restarted, and are not missed. The first to be killed is killed within it."""
    if not AWAY:
        look_for_restarts()
    AWAY.append(why)
    begun = time.time()
    try:
        yield
    finally:
        AWAY.remove(why)
        MEANT.append((begun, time.time()))


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
    """Runs kubectl and returns what it printed; without `check`, how it ended."""
    if not check:
        return run(*KUBECTL, *args, check=False, stdin=stdin, timeout=timeout)
    done = answered(*args, stdin=stdin, timeout=timeout)
    if done.returncode != 0:
        raise Refused(f"kubectl {' '.join(map(str, args))}\nexit {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def answered(*args, stdin=None, timeout=120):
    """How kubectl ended, once a server answered: asked again for as long as servers turn it away, in a row, unless they may be away."""
    begun, turned_away = time.monotonic(), 0
    while True:
        done = run(*KUBECTL, *args, check=False, stdin=stdin, timeout=timeout)
        lost = TURNED_AWAY.search(done.stderr) or args[0] not in ("create", "exec") and CUT_OFF.search(done.stderr)
        took = time.monotonic() - begun
        if turned_away:
            LONGEST[0] = max(LONGEST[0], took)
        if done.returncode == 0 or not lost or AWAY or took > HICCUP:
            return done
        turned_away += 1
        HICCUPS[0] += 1
        time.sleep(1)


def get(*args):
    """An object, or a list's items, as kubectl reads it; None when it is not there."""
    done = answered("get", *args, "-o", "json")
    if done.returncode != 0:
        if "NotFound" in done.stderr or "not found" in done.stderr:
            return None
        raise Refused(f"kubectl get {' '.join(args)}: {done.stderr.strip()}")
    found = json.loads(done.stdout)
    return found["items"] if found.get("kind", "").endswith("List") else found


def wait(what, condition, deadline=300, every=1.0):
    """Waits until condition() is true; the last thing it saw is in the error.

    What is not there yet is waited for; a server that does not answer for HICCUP seconds is a failure, unless it may be away() or the
    machine was too busy to ask it.
    """
    ends, last = time.monotonic() + deadline, None
    try:
        while time.monotonic() < ends:
            try:
                last = condition()
                if last is True or (last and not isinstance(last, str)):
                    return last
            except (subprocess.TimeoutExpired, OSError, KeyError, TypeError, IndexError) as error:
                last = f"{type(error).__name__}: {error}"
            except Refused as error:
                last = f"{type(error).__name__}: {error}"
                if not AWAY and not re.search("timeout|timed out", last, re.IGNORECASE):
                    raise Failed(f"nobody should be away, but while waiting for {what}: {error}") from error
            time.sleep(every)
    except Stopped as error:
        raise Stopped(f"{error} while waiting for {what}; last seen: {last}") from None
    raise Failed(f"gave up after {deadline} s waiting for {what}; last seen: {last}")


def look_for_restarts():
    """Remembers each container of Navigator that ended at a time at which the job did not mean it, and how."""
    for pod in get("pods", "-n", "navigator") or []:
        for status in pod["status"].get("containerStatuses", []):
            ended = status.get("lastState", {}).get("terminated")
            if not ended or not ended.get("finishedAt"):
                continue
            when = datetime.fromisoformat(ended["finishedAt"].replace("Z", "+00:00")).timestamp()
            # Kubernetes tells whole seconds. One that ended before this job is another job's.
            if when >= BEGUN_AT and not any(begun - 2 <= when <= over + 2 for begun, over in MEANT):
                name = f"{pod['metadata']['name']}/{status['name']}"
                RESTARTS[name, ended["finishedAt"]] = f"{name} ended at {ended['finishedAt']}: {ended.get('reason')}, exit code {ended.get('exitCode')}"


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
    wait(f"the end of {component}", lambda: ended(pid) or "it runs", every=0.1)
    with open(RUN / f"log/{component}.log", "ab") as log:
        begun = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
    file.write_text(str(begun.pid))


def ended(pid):
    """Is this process gone, or a zombie that nobody asks for?"""
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def keep_logs(logs):
    """Collects what every component said, in this folder."""
    logs.mkdir(parents=True, exist_ok=True)
    for name, args in {
        "objects.txt": ["get", "all,pvc,pv,sa,role,rolebinding,pdb,lease", "-A", "-o", "wide"],
        "navigator.yaml": ["get", "cassandraclusters,elasticsearchclusters,pilots,leaderleases", "-A", "-o", "yaml"],
        "events.txt": ["get", "events", "-A", "--sort-by=.lastTimestamp"],
        "apiservices.yaml": ["get", "apiservice", "v1beta1.navigator.jetstack.io", "v1alpha1.navigator.jetstack.io", "-o", "yaml"],
        "describe.txt": ["describe", "pods", "-A"],
    }.items():
        done = kubectl(*args, check=False)
        (logs / name).write_text(done.stdout + done.stderr)
    pods = kubectl("get", "pods", "-A", "-o", "jsonpath={range .items[*]}{.metadata.namespace} {.metadata.name}{'\\n'}{end}", check=False)
    for line in pods.stdout.splitlines():
        namespace, name = line.split()
        for suffix, flag in (("", []), (".previous", ["--previous"])):
            done = kubectl("logs", "-n", namespace, name, "--all-containers", "--prefix", *flag, check=False)
            if done.stdout:
                (logs / f"{namespace}.{name}{suffix}.log").write_text(done.stdout)
    for log in (RUN / "log").glob("*.log"):
        (logs / log.name).write_bytes(log.read_bytes()[-2_000_000:])


def main(job):
    """Runs a job. One that fails leaves logs, and ends with the line `JOB FAILED: first failure`."""
    def stop(*_):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise Stopped("asked to end")
    signal.signal(signal.SIGTERM, stop)
    try:
        job()
        look_for_restarts()
        claim("no pod of Navigator was restarted but those that were meant to be", not RESTARTS, "; ".join(RESTARTS.values()))
    except (Exception, Stopped) as error:  # noqa: BLE001 - everything is reported alike
        say(f"FAILED: {type(error).__name__ + ': ' if not isinstance(error, (Failed, Stopped)) else ''}{error}")
        if not isinstance(error, (Failed, Stopped)):
            traceback.print_exc(file=sys.stdout)
        ended_badly(error)
    say(f"the API turned requests away {HICCUPS[0]} times" + (f", for at most {LONGEST[0]:.0f} s in a row" if HICCUPS[0] else ""))
    for name, took in STEPS:
        print(f"{took:8.1f} s  {name}")


def ended_badly(error):
    """Keeps logs, shows the last lines of ours, and says last what failed first."""
    with contextlib.suppress(Exception):
        logs = LOGS / JOB / datetime.now(timezone.utc).strftime("%Y%m%dT%H%M%S")
        keep_logs(logs)
        for older in sorted(logs.parent.iterdir())[:-KEPT]:
            shutil.rmtree(older, ignore_errors=True)
        for log in [log for pods in ("navigator.*", "*.cass-*", "*.es-*") for log in sorted(logs.glob(f"{pods}.log"))]:
            tail = log.read_text(errors="replace").splitlines()[-15:]
            print(f"==> {log.name}", *[re.sub(r"^\[[^]]*\] ", "", line)[:400] for line in tail if "audit.k8s.io" not in line], sep="\n")
        say(f"logs of every component are in {logs}")
    with contextlib.suppress(Exception):
        look_for_restarts()
        for restart_ in RESTARTS.values():
            say(f"not meant: {restart_}")
    say(f"the API turned requests away {HICCUPS[0]} times")
    words = " ".join(str(error).split()) or type(error).__name__
    print(f"{JOB} FAILED: {words[:800]}", flush=True)
    sys.exit(1)
