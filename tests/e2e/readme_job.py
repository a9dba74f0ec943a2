"""README.md's block for Kubernetes, pasted as a whole into an empty cluster, with a statement for the shell that it ends with."""
import re

from bed import CTR, KUBECTL, ROOT, RUN, claim, main, run, step
from navigator import is_installed

# As the image's file names it.
IMAGE = "quay.io/jetstack/navigator:v0.2.0"


def job():
    text = (ROOT / "README.md").read_text()
    block = re.search(r"\n## On Kubernetes\n.*?\n```\n(.*?)```\n", text, re.DOTALL)[1]
    build, commands = block.split("\n", 1)
    claim("the block begins with the image, which is there already", build == "make image", build)
    # The registry in the block stands for the reader's.
    run(*CTR, "images", "tag", IMAGE, re.search(r"--image (\S+)", commands)[1])
    folder = RUN / "readme"
    folder.mkdir(exist_ok=True)
    (folder / "kubectl").unlink(missing_ok=True)
    (folder / "kubectl").symlink_to(KUBECTL[0])
    with step("the block, as pasted"):
        script = f"set -eo pipefail; cd {ROOT}; export PATH={folder}:$PATH KUBECONFIG={RUN / 'admin.kubeconfig'}\n{commands}"
        done = run("bash", "-c", script, stdin="SELECT cluster_name, release_version FROM system.local;\n", timeout=1200, check=False)
        print(done.stdout, done.stderr, sep="\n")
        claim("it ends well, with a row that Cassandra answered", done.returncode == 0 and re.search(r"5\.0\.\d", done.stdout), done.returncode)
    is_installed()


if __name__ == "__main__":
    main(job)
