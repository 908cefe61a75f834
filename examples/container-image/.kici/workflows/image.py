"""An image from a Containerfile, without a container engine: nobody needs the host's socket for that."""

from dataclasses import dataclass

from kici import Ctx, job, manual, push, step, workflow

ARCHIVE = "build/site.tar"
BUILDAH = {
    "BUILDAH_ISOLATION": "chroot",  # RUN lines: no namespaces, no runtime
    "STORAGE_DRIVER": "vfs",  # plain directories: no overlay, no FUSE
}


@dataclass
class Image:
    version: str
    digest: str


@step(timeout="10m")
async def build_image(ctx: Ctx) -> Image:
    """The store of layers lies in the job's own directory, and goes with it."""
    version = ctx.git.tag or ctx.git.sha[:12]
    store = ["--root", "build/store", "--runroot", "build/run"]
    await ctx.sh("mkdir -p build")
    await ctx.sh(
        ["buildah", *store, "build", "--timestamp", "0", "--build-arg", f"VERSION={version}", "--tag", "site", "."]
    )
    await ctx.sh(["buildah", *store, "push", "--digestfile", "build/digest", "site", f"oci-archive:{ARCHIVE}:site"])
    return Image(version, await ctx.sh("cat build/digest").text())


@step
async def check_image(ctx: Ctx) -> str:
    return await ctx.sh("python3 check_image.py {archive} site", archive=ARCHIVE).text()


@step
async def upload(ctx: Ctx) -> None:
    """`skopeo copy oci-archive:site.tar docker://…` in a job with the registry's secret publishes it."""
    await ctx.artifacts.upload("image", [ARCHIVE])


image = job("image", runs_on="linux", sandbox="image-build", env=BUILDAH, steps=[build_image, check_image, upload])

container_image = workflow("image", on=[push(branches="main"), push(tags="v*"), manual()], jobs=[image])
