"""The guides of docs/, typed from top to bottom: of each database, and the pages that belong to none.

Each page runs in a namespace of its own that enforces the Pod Security level `restricted`, as docs/hardening.md says it may.
"""
import os
import shutil

from bed import KUBECTL, RUN, ROOT, kubectl, main, say, step
from guide import Guide
from navigator import install


def follow(page, namespace):
    """Every command of a page, with its namespace as the one that kubectl goes by."""
    folder = RUN / f"guide-{namespace}"
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "bin").mkdir(parents=True)
    for name, program in {"kubectl": KUBECTL[0], "navigator": ROOT / "bin/navigator", "kubectl-navigator": ROOT / "bin/navigator"}.items():
        (folder / "bin" / name).symlink_to(program)
    config = folder / "kubeconfig"
    shutil.copy(RUN / "admin.kubeconfig", config)
    kubectl("create", "namespace", namespace)
    kubectl("label", "namespace", namespace, "pod-security.kubernetes.io/enforce=restricted")
    kubectl("config", "set-context", "--current", f"--namespace={namespace}", f"--kubeconfig={config}")
    guide = Guide(page, {"PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "KUBECONFIG": str(config)}, say)
    guide.run()
    guide.ended()
    kubectl("delete", "namespace", namespace, timeout=400)


def job():
    with step("install"):
        install()
    for page in ("docs/machines.md", "docs/migration.md", "docs/hardening.md", "docs/cassandra.md", "docs/elasticsearch.md"):
        with step(f"{page}, as typed"):
            follow(page, f"guide-{page.split('/')[1].split('.')[0]}")


if __name__ == "__main__":
    main(job)
