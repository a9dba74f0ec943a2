"""The installed Navigator: put there in any of three ways, taken away, and how many processes of each role run."""
import contextlib
import os

from bed import BED, ROOT, RUN, claim, condition_is, get, kubectl, lock, pids, run, wait

MANIFEST = ROOT / "deploy/navigator.yaml"
BASE = ROOT / "deploy/kustomize/base"
CHART = ROOT / "deploy/helm/navigator"
# Annotation that lets the store be deleted.
DELETE_STORE = "navigator.jetstack.io/delete-store=true"


def install():
    """As the README tells a user: the manifest, unedited."""
    with lock("install"):
        kubectl("apply", "--server-side", "-f", MANIFEST)
        is_installed()


def install_by_kustomize():
    kubectl("apply", "--server-side", "-k", BASE)
    is_installed()


def helm(*args, check=True):
    """Runs Helm, whose files are the bed's."""
    os.environ["HELM_CACHE_HOME"] = os.environ["HELM_CONFIG_HOME"] = os.environ["HELM_DATA_HOME"] = str(RUN / "helm")
    return run(BED / "bin/helm", f"--kubeconfig={RUN / 'admin.kubeconfig'}", "--namespace=navigator", *args, check=check, timeout=600).stdout


def is_installed():
    for name in ("navigator-apiserver", "navigator-controller"):
        wait(f"deployment {name}", condition_is("Available", "True", "deployment", "-n", "navigator", name), 300)
    for version in ("v1beta1", "v1alpha1"):
        service = ("apiservice", f"{version}.navigator.jetstack.io")
        wait(f"{version} Available", condition_is("Available", "True", *service), 300)
        spec = get(*service)["spec"]
        claim(f"{version} is Available with a caBundle", spec.get("caBundle") and not spec.get("insecureSkipTLSVerify"), spec)
    print(kubectl("get", "apiservice", "-l", "app.kubernetes.io/part-of=navigator"))


def remove():
    """All of it, store and all."""
    for kept in (("namespace", "navigator"), ("pvc", "-n", "navigator", "navigator-apiserver")):
        if get(*kept):
            kubectl("annotate", "--overwrite", *kept, DELETE_STORE)
    kubectl("delete", "-f", MANIFEST, "--ignore-not-found", timeout=300)


def scale(role, number):
    kubectl("scale", "deployment", "-n", "navigator", f"navigator-{role}", f"--replicas={number}")


def servers(number):
    scale("apiserver", number)
    wait(f"{number} servers", lambda: len(pids("apiserver")) == number or str(pids("apiserver")), 300)


@contextlib.contextmanager
def without_controller():
    """While this lasts, nothing of what is applied is run, and no status is written."""
    scale("controller", 0)
    wait("no controller", lambda: pids("controller") == [] or "still there", 300)
    yield
    scale("controller", 1)
