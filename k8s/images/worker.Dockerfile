# Dask scheduler and workers: [place.dask.kubernetes] image. Neither Airflow nor torch.
#   docker build -f k8s/images/worker.Dockerfile -t sluice/worker:0.1.0 .
FROM python:3.11.14-slim-bookworm AS base
ENV PATH=/opt/venv/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 PIP_DISABLE_PIP_VERSION_CHECK=1

# What to install; see wanted.py.
FROM base AS wanted
WORKDIR /build
COPY pyproject.toml k8s/images/wanted.py ./
RUN python wanted.py  > wanted.txt

FROM base AS packages
WORKDIR /build
RUN python -m venv /opt/venv
COPY requirements.txt ./
COPY --from=wanted /build/wanted.txt ./
RUN --mount=type=cache,target=/root/.cache/pip \
    pip install --constraint requirements.txt --requirement wanted.txt

# The model that tells languages, with its licence; needs nothing but these files.
FROM base AS models
WORKDIR /build
COPY tasks/__init__.py tasks/
COPY tasks/core/__init__.py tasks/core/errors.py tasks/core/terminal.py tasks/core/digest.py tasks/core/
COPY tasks/filters/__init__.py tasks/filters/pretrained.py tasks/filters/
RUN SLUICE_MODELS=/opt/models python -m tasks.filters.pretrained

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
COPY --from=packages /opt/venv /opt/venv
COPY --from=models /opt/models /opt/models
RUN --mount=type=bind,from=wheel,source=/wheels,target=/wheels pip install --no-cache-dir --no-deps /wheels/*.whl
WORKDIR /tmp
# One thread in each numerical library: Dask fills the cores, and a second pool of threads only waits.
ENV USER=sluice HOME=/tmp SLUICE_MODELS=/opt/models GIT_PYTHON_REFRESH=quiet OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1
USER 50000:50000
CMD ["python", "-m", "dask", "worker", "--help"]
