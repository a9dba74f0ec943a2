"""The lines of cases.txt: read, and typed or sent in a world; what kubectl or the server answered, without what must differ each time."""
import json
import os
import re
import shutil
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from definitions import GROUP
from world import BIN, Failed

HERE = Path(__file__).parent
# Sections at a time: more than there are cores, because some lines only wait.
BESIDE = 4
PATIENCE = 300
PLAIN = [(re.compile(pattern), by) for pattern, by in (
    (r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}", "UID"),
    (r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?(Z| [+-]\d{4})", "TIME"),
    (r"[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \d{4}", "TIME"),
    (r"\b([EIW])\d{4} \d\d:\d\d:\d\d\.\d+ +\d+ \w+\.go:\d+\]", r"\1 LOG]"),
    (r"((?:resourceVersion|resource version)\W{0,6})\d+", r"\1N"),
    (r"(Resource Version: +)\d+", r"\1N"),
    (r"(\"continue\": ?\")[^\"]+", r"\1TOKEN"),
    (r"(X509SHA256=)\w+", r"\1N"),
    (r"\bgen-[a-z0-9]{5}\b", "gen-XXXXX"),
    (r"\b(LIVE|MERGED|kubectl-edit)-\w+", r"\1-N"),
)]
# An age takes the place of its column's header.
AGE = re.compile(r"(?<= )(\d+s|[2-9]m(?:\d+s)?)( *)(?=\s|$)")
# kubectl's reflector logs that its time is over only when the process lives long enough, so such lines are left out.
LATE = re.compile(r"[EIW] LOG\] .* reflector=.*(context deadline exceeded|very short watch)|[EIW] LOG\] .*context deadline exceeded.* reflector=")
REQUEST = re.compile(r"> (?P<method>[A-Z]+) (?P<path>\S+)(?: \[(?P<header>[\w-]+): (?P<value>[^]]+)\])?(?: (?P<body>.*))?")
# Our schemas have names, as those of built-in kinds do; a CRD's have none.
NAMED = re.compile(r"<((?:\[\]|map\[string\])*)([A-Z]\w*)>")


def plain(line, text):
    """What was answered to this line, without ids, times, revisions and the order of what has none."""
    for pattern, by in PLAIN:
        text = pattern.sub(by, text)
    text = young(text)
    if line.startswith("explain"):
        text = NAMED.sub(lambda name: f"<{name[1]}{'string' if name[2] == 'Quantity' else 'Object'}>", text)
    if " --list" in line and not line.startswith("auth"):
        text = "\n".join(sorted(text.splitlines()))
    if "--raw" in line and text.startswith("{") and "\n" not in text.strip():
        text = json.dumps(unordered(json.loads(text)), sort_keys=True)
    kept = [one.rstrip() for one in owners(text.splitlines()) if not LATE.match(one)]
    return "\n".join(kept)


def young(text):
    """A table in which everything was made just now; its column is no wider than its header."""
    wider = max((len(age[1]) for age in AGE.finditer(text)), default=0) - len("AGE")
    if wider <= 0:
        return AGE.sub(lambda age: "0s".ljust(len(age[0])), text)
    text = AGE.sub(lambda age: "0s".ljust(len(age[0]) - wider), text)
    return re.sub(r"(?m)(?<=\bAGE) {%d}(?= {3}\S)" % wider, "", text)


def unordered(thing):
    """JSON in which verbs and resources of discovery are sorted."""
    if isinstance(thing, dict):
        return {key: sorted(map(unordered, inner), key=lambda one: json.dumps(one, sort_keys=True)) if key in ("verbs", "resources") else unordered(inner)
                for key, inner in thing.items()}
    return [unordered(inner) for inner in thing] if isinstance(thing, list) else thing


def owners(lines):
    """The lines with the entries of managedFields sorted: of one second they are in no order."""
    if "  managedFields:" not in lines:
        return lines
    begin = lines.index("  managedFields:") + 1
    end = next((at for at in range(begin, len(lines)) if not re.match("  - |   ", lines[at])), len(lines))
    entries = re.split(r"\n(?=  - )", "\n".join(lines[begin:end]))
    return lines[:begin] + "\n".join(sorted(entries)).splitlines() + owners(lines[end:])


def sections():
    """Names, each with its lines."""
    found = {}
    for line in (HERE / "cases.txt").read_text().splitlines():
        if line.startswith("["):
            lines = found[line.strip("[]")] = []
        elif line and not line.startswith("#"):
            lines.append(line)
    return found


def typed(line, **how):
    words = line.removeprefix("& ").removeprefix("! ")
    command = words[2:] if words.startswith("$ ") else f"kubectl {words}"
    return subprocess.Popen(["bash", "-c", command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                            text=True, start_new_session=True, **how)


def answer(line, process):
    try:
        out, err = process.communicate(timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate()
        err += f"\nkilled after {PATIENCE} s"
    return {"code": process.returncode, "stdout": plain(line, out), "stderr": plain(line, err)}


def merged(thing, patch):
    """As a merge patch does it."""
    if not isinstance(patch, dict):
        return patch
    thing = dict(thing) if isinstance(thing, dict) else {}
    for key, value in patch.items():
        if value is None:
            thing.pop(key, None)
        else:
            thing[key] = merged(thing.get(key), value)
    return thing


def sent(world, namespace, line, base):
    """The server's answer to a `>` line, which is sent as it is written."""
    method, path, header, value, body = REQUEST.fullmatch(line).groups()
    if body and body.startswith("shop+"):
        body = json.dumps(merged(base, json.loads(body.removeprefix("shop+"))))
    if body:
        body = re.sub(r"\(x\*(\d+)\)", lambda times: "x" * int(times[1]), body)
    headers = {} if body is None else {"Content-Type": "application/merge-patch+json" if method == "PATCH" else "application/json"}
    status, warnings, text = world.send(method, f"/apis/{GROUP}/v1beta1/namespaces/{namespace}/{path}", body, headers | ({header: value} if header else {}))
    try:
        text = json.dumps(without_managers(json.loads(text)), indent=1, sort_keys=True)
    except ValueError:
        pass
    told = sorted("Warning: " + re.sub(r'^299 - "(.*)"$', r"\1", warning).replace('\\"', '"') for warning in warnings)
    return {"code": status, "stdout": plain(line, text), "stderr": plain(line, "\n".join(told))}


def without_managers(thing):
    """Who wrote which field is compared by kubectl's own lines."""
    if isinstance(thing, dict):
        return {key: without_managers(value) for key, value in thing.items() if key != "managedFields"}
    return [without_managers(value) for value in thing] if isinstance(thing, list) else thing


def section(world, name, lines):
    """What each compared line was answered with, in order."""
    begun, folder = time.monotonic(), world.folder / "sections" / name
    shutil.copytree(HERE / "manifests", folder)
    how = {"cwd": folder, "env": {
        "PATH": f"{BIN}:{os.environ['PATH']}", "HOME": str(world.folder), "TZ": "UTC", "LC_ALL": "C", "KUBE_EDITOR": "false", "GOGC": "off",
        "KUBECONFIG": str(world.kubeconfig(f"section-{name}", name, user="kate"))}}
    world.kubectl("create", "namespace", name)
    base = None
    if any(line.startswith("> ") for line in lines):
        base = json.loads(world.kubectl("create", "--dry-run=client", "-o", "json", "-f", str(folder / "shop.yaml")))
        base = merged(base, {"metadata": {"name": "b", "namespace": None}})
    answers, running = [], {}
    for line in lines:
        if line.startswith("> "):
            answers.append({"line": line, **sent(world, name, line, base)})
            continue
        process = typed(line, **how)
        if line.startswith("& "):
            running[len(answers)] = process
            answers.append({"line": line})
            continue
        got = answer(line, process)
        if not line.startswith("! "):
            answers.append({"line": line, **got})
        elif got["code"]:
            raise Failed(f"[{name}] {line}: {got}")
    for place, process in running.items():
        answers[place] |= answer(answers[place]["line"], process)
    world.say(f"[{name}] {len(answers)} lines in {time.monotonic() - begun:.1f} s")
    return answers


def work(world, out, *only):
    """Types all sections, or those that are named, and writes the answers."""
    chosen = {name: lines for name, lines in sections().items() if not only or name in only}
    # Discovery is asked once, and kept in HOME.
    world.kubectl("api-resources", "--cache-dir", str(world.folder / ".kube/cache"))
    with ThreadPoolExecutor(BESIDE) as pool:
        # The sections with the most lines begin first.
        order = sorted(chosen, key=lambda name: -len(chosen[name]))
        answers = dict(zip(order, pool.map(lambda name: section(world, name, chosen[name]), order)))
    Path(out).write_text(json.dumps(answers))
    world.say(f"answered {sum(map(len, answers.values()))} lines")
