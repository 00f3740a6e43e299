# The S3 server of the kind overlay: ministack from PyPI, in the version whose conditional puts were measured.
FROM python:3.11.14-slim-bookworm
COPY k8s/overlays/kind/store-requirements.txt /tmp/requirements.txt
RUN pip install --no-cache-dir --disable-pip-version-check --no-deps -r /tmp/requirements.txt
USER 50000:50000
EXPOSE 4566
CMD ["ministack"]
