#!/usr/bin/env bash
# Builds the images of deploy/Dockerfile: deploy/images.sh [server] [server-gpu] [dashboard]; without a name, server and dashboard.
#
#   TAG          the tag; dev by default
#   BUILD        docker, podman or buildah; the first of them that there is
#   BASE         the image below. "debian" makes it of Debian's packages with mmdebstrap, for a machine without a registry (root, buildah)
#   PIP_CONF     a pip.conf for the build, such as for another index; nothing of it is in the image
#   TORCH_INDEX  where PyTorch without CUDA is; "" if PIP_CONF names it
#   BUILD_FLAGS  more flags of the build, such as --volume
#   ARCHIVES     a folder, in which each image is written as NAME.tar in the form of `docker save`
set -euo pipefail
cd "$(dirname "$(realpath "$0")")/.."
tag=${TAG:-dev} base=${BASE:-docker.io/library/python:3.11-slim-bookworm}
for build in ${BUILD:-docker podman buildah}; do ! command -v "$build" > /dev/null || break; done
command -v "$build" > /dev/null || { echo "No $build: install docker, podman or buildah (sudo apt-get install buildah)."; exit 1; }

# Make an image of Debian's packages. The sources of this machine say where they are.
debian() { # NAME PACKAGES
  buildah inspect "$1" > /dev/null 2>&1 && return
  local made container
  made=$(mktemp)
  { cat /etc/apt/sources.list /etc/apt/sources.list.d/debian.sources 2> /dev/null || true; } | unshare --mount mmdebstrap --quiet \
    --format=tar --variant=essential --include="$2" --dpkgopt='path-exclude=/usr/share/locale/*' \
    --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/doc/*' \
    --dpkgopt='path-include=/usr/share/doc/*/copyright' bookworm "$made" -
  container=$(buildah from scratch)
  buildah add --quiet "$container" "$made" /
  buildah commit --quiet "$container" "$1"
  buildah rm "$container" > /dev/null
  rm "$made"
}

arguments=(--build-arg "BASE=$base")
if [ "$base" = debian ]; then
  build=buildah needed=python3,ca-certificates,netbase,tzdata,libstdc++6,libgomp1
  debian localhost/slipway-base:bookworm "$needed"
  debian localhost/slipway-builder:bookworm "$needed,python3-venv,python3-dev,gcc,libc6-dev"
  arguments=(--build-arg BASE=localhost/slipway-base:bookworm --build-arg BUILDER=localhost/slipway-builder:bookworm)
fi
[ -z "${TORCH_INDEX+set}" ] || arguments+=(--build-arg "TORCH_INDEX=$TORCH_INDEX")
[ -z "${PIP_CONF:-}" ] || arguments+=(--secret "id=pip,src=$PIP_CONF")
version=$(sed -n '0,/^version = /s/^version = "\(.*\)"/\1/p' pyproject.toml)  # the first: another is PyTorch's
labels=(--label "org.opencontainers.image.version=$version" --label "org.opencontainers.image.base.name=$base")
if git rev-parse HEAD > /dev/null 2>&1; then
  labels+=(--label "org.opencontainers.image.revision=$(git describe --always --abbrev=40 --dirty --exclude='*')")
  labels+=(--label "org.opencontainers.image.created=$(git log -1 --format=%cI)")
fi
[ -z "${SOURCE:-}" ] || labels+=(--label "org.opencontainers.image.source=$SOURCE")

for image in "${@:-server dashboard}"; do for image in $image; do
  target=(--target "${image%-gpu}")
  [ "$image" = "${image%-gpu}" ] || target+=(--build-arg DEVICE=gpu)
  # Labels are a build of their own: a cached layer would keep those of an earlier commit.
  case $build in
    docker) DOCKER_BUILDKIT=1 docker build -f deploy/Dockerfile "${target[@]}" "${arguments[@]}" ${BUILD_FLAGS:-} -t "slipway-$image:$tag" .
      docker build --no-cache "${labels[@]}" -t "slipway-$image:$tag" - <<< "FROM slipway-$image:$tag" ;;
    *) # chroot needs no rights that a container lacks
      [ "$build" = podman ] && command=(podman build) || command=(buildah bud)
      "${command[@]}" --isolation chroot --layers --pull=missing -f deploy/Dockerfile --ignorefile deploy/Dockerfile.dockerignore \
        "${target[@]}" "${arguments[@]}" ${BUILD_FLAGS:-} -t "localhost/slipway-$image:$tag" .
      "${command[@]}" --isolation chroot --no-cache --pull=never "${labels[@]}" -t "localhost/slipway-$image:$tag" \
        -f - <<< "FROM localhost/slipway-$image:$tag" ;;
  esac
  if [ -n "${ARCHIVES:-}" ]; then
    mkdir -p "$ARCHIVES"
    rm -f "$ARCHIVES/slipway-$image.tar"
    case $build in
      docker) docker save -o "$ARCHIVES/slipway-$image.tar" "slipway-$image:$tag" ;;
      *) "$build" push "localhost/slipway-$image:$tag" "docker-archive:$ARCHIVES/slipway-$image.tar:docker.io/library/slipway-$image:$tag" ;;
    esac
  fi
done; done
