"""README.md's block for Kubernetes, pasted as a whole into an empty cluster; its last command reads a statement."""
import re

from bed import CTR, ROOT, RUN, claim, main, run, step
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
    script = f"set -eo pipefail; cd {ROOT}; export KUBECONFIG={RUN / 'admin.kubeconfig'}\n"
    before, shell = re.fullmatch(r"(.*\n)([^\n]+)\n", commands, re.DOTALL).groups()
    with step("the block, as pasted"):
        print(run("bash", "-c", script + before, timeout=1200).stdout)
    with step("its last command, with a statement"):
        shown = run("bash", "-c", script + shell, stdin="SELECT release_version FROM system.local;\n").stdout
        print(shown)
        claim("Cassandra answers", "5.0.6" in shown, shown)
    is_installed()


if __name__ == "__main__":
    main(job)
