# Sluice in your own image of Airflow, or in Airflow's official one: docs/existing-airflow.md.
#   docker build -f k8s/images/existing.Dockerfile --build-arg BASE=apache/airflow:3.3.2-python3.11 -t ours/airflow:1 .
# The packages are added to the environment that the image has, in the versions of the lock. For tasks that train in the
# worker: --build-arg EXTRAS=airflow,train. The user is that of the image: 50000, in group 0, in the official one.
ARG BASE=apache/airflow:3.3.2-python3.11
FROM python:3.11.14-slim-bookworm AS base
ENV PYTHONDONTWRITEBYTECODE=1 PIP_DISABLE_PIP_VERSION_CHECK=1

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

# What to install; see wanted.py.
FROM base AS wanted
ARG EXTRAS=airflow
WORKDIR /build
COPY pyproject.toml k8s/images/wanted.py ./
RUN python wanted.py $(echo "$EXTRAS" | tr , ' ') > wanted.txt

FROM ${BASE}
COPY --from=models /opt/models /opt/models
COPY --from=wanted /build/wanted.txt /tmp/sluice/
COPY requirements.txt /tmp/sluice/
RUN pip install --no-cache-dir --constraint /tmp/sluice/requirements.txt --requirement /tmp/sluice/wanted.txt
RUN --mount=type=bind,from=wheel,source=/wheels,target=/wheels pip install --no-cache-dir --no-deps /wheels/*.whl
ENV SLUICE_MODELS=/opt/models GIT_PYTHON_REFRESH=quiet
