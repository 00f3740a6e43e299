# Airflow's services and task pods, and MLflow: k8s/helm/airflow.yaml, k8s/base/mlflow, k8s/pods/executor.yaml.
#   docker build -f k8s/images/airflow.Dockerfile -t sluice/airflow:0.1.0 .
# Stages without a place of their own run in task pods; none of them needs torch, which is in the trainer's image.
FROM python:3.11.14-slim-bookworm AS base
ENV PATH=/opt/venv/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 PIP_DISABLE_PIP_VERSION_CHECK=1

# What to install; see wanted.py.
FROM base AS wanted
WORKDIR /build
COPY pyproject.toml k8s/images/wanted.py ./
RUN python wanted.py airflow > wanted.txt

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
# The probes of Airflow's chart start their commands with /entrypoint, which in Airflow's own image ends in the command.
RUN ln -s /usr/bin/env /entrypoint
# tini: Airflow's processes run as PID 1's child, so that signals reach them and dead children are reaped.
RUN apt-get update && apt-get install --yes --no-install-recommends tini && rm -rf /var/lib/apt/lists/*
COPY --from=packages /opt/venv /opt/venv
COPY --from=models /opt/models /opt/models
RUN --mount=type=bind,from=wheel,source=/wheels,target=/wheels pip install --no-cache-dir --no-deps /wheels/*.whl
WORKDIR /opt/airflow
COPY airflow.cfg ./
COPY k8s/pods k8s/pods
COPY dags dags
# GitPython, which MLflow imports, must not look for a git that is not there.
ENV USER=sluice HOME=/tmp AIRFLOW_HOME=/opt/airflow SLUICE_MODELS=/opt/models GIT_PYTHON_REFRESH=quiet
USER 50000:50000
EXPOSE 8080
ENTRYPOINT ["tini", "--"]
CMD ["airflow", "version"]
