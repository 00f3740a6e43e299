# Trainers, canaries and gangs: [place.kubernetes] image. torch with CUDA from PyPI, which is nearly all of its size; the
# driver is the node's. For a cluster without GPUs: --build-arg TORCH_INDEX=https://download.pytorch.org/whl/cpu
#   docker build -f k8s/images/trainer.Dockerfile -t sluice/trainer:0.1.0 .
FROM python:3.11.14-slim-bookworm AS base
ENV PATH=/opt/venv/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 PIP_DISABLE_PIP_VERSION_CHECK=1

# What to install; see wanted.py.
FROM base AS wanted
WORKDIR /build
COPY pyproject.toml k8s/images/wanted.py ./
RUN python wanted.py train > wanted.txt

FROM base AS packages
WORKDIR /build
RUN python -m venv /opt/venv
COPY requirements.txt ./
# First and alone, because it is the largest layer and changes least.
ARG TORCH_INDEX
RUN --mount=type=cache,target=/root/.cache/pip \
    pip install --constraint requirements.txt ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} torch
COPY --from=wanted /build/wanted.txt ./
RUN --mount=type=cache,target=/root/.cache/pip \
    pip install --constraint requirements.txt --requirement wanted.txt

FROM base AS wheel
WORKDIR /build
COPY pyproject.toml hatch_build.py README.md ./
COPY tasks tasks
COPY operators operators
COPY plugins plugins
COPY dags dags
RUN --mount=type=cache,target=/root/.cache/pip pip wheel --no-deps --wheel-dir /wheels .

FROM base
# The user of the pods has a name, which Airflow and torch's cache ask for, and a home that can be written. A cluster that
# assigns other user ids (OpenShift) has no such line: there the variables give both.
RUN echo 'sluice:x:50000:50000::/tmp:/usr/sbin/nologin' >> /etc/passwd && echo 'sluice:x:50000:' >> /etc/group
# torch.compile: triton builds the launchers of its kernels with a C compiler when the training starts.
RUN apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
COPY --from=packages /opt/venv /opt/venv
RUN --mount=type=bind,from=wheel,source=/wheels,target=/wheels pip install --no-cache-dir --no-deps /wheels/*.whl
WORKDIR /tmp
ENV USER=sluice HOME=/tmp GIT_PYTHON_REFRESH=quiet
USER 50000:50000
# The trainer itself is PID 1 in a pod: it saves on SIGTERM.
CMD ["python", "-m", "tasks", "--help"]
