# amp-transpile with ONNX Runtime's CUDA provider, the CUDA 13 and cuDNN 9 libraries included. The host brings the
# driver (580 or newer) and NVIDIA's container toolkit. Models are taken from and written to /models:
#
#   docker build -t amp-transpiler .
#   docker run --rm --gpus all --user "$(id -u)" -v "$PWD:/models" amp-transpiler model.onnx --benchmark
#
# Without `--gpus all` it converts and checks on the CPU. `--build-arg EXTRAS=cuda,distributed` installs other extras,
# `--build-arg VERSION=1.2.0` sets the version where the build context has no git history with tags.
ARG PYTHON=3.13-slim-trixie

FROM python:${PYTHON} AS build
ARG VERSION=""
# hadolint ignore=DL3008
RUN apt-get update && apt-get install --yes --no-install-recommends git && rm -rf /var/lib/apt/lists/*
WORKDIR /source
COPY . .
RUN if [ -n "$VERSION" ]; then export SETUPTOOLS_SCM_PRETEND_VERSION="$VERSION"; fi \
    && pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:${PYTHON}
ARG EXTRAS=cuda
COPY --from=build /wheels /wheels
RUN pip install --no-cache-dir "$(echo /wheels/*.whl)[${EXTRAS}]" \
    && rm -r /wheels \
    && useradd --create-home --uid 1000 converter
ENV NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
USER 1000
WORKDIR /models
ENTRYPOINT ["amp-transpile"]
