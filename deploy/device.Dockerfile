# A device, for amd64 and arm64. Build from the repository:
#   docker build -f deploy/device.Dockerfile -t device-runtime-device .
# Once, with the token that `device-runtime device add` printed (it is kept in the volume):
#   docker run --rm -i -v device:/var/lib/device-runtime device-runtime-device join --enrol - < token
# From then on, with samples in ./samples:
#   docker run -d --name device --restart unless-stopped --memory 512m \
#     -v device:/var/lib/device-runtime -v ./samples:/samples:ro device-runtime-device
FROM python:3.12.12-slim-bookworm AS build
WORKDIR /src
COPY . .
RUN python -m venv /opt/device-runtime \
 && /opt/device-runtime/bin/pip install --no-cache-dir pip==25.3 \
 && /opt/device-runtime/bin/pip install --no-cache-dir --only-binary=:all: --no-compile \
      -c deploy/constraints.txt --build-constraint deploy/constraints.txt . \
 && /opt/device-runtime/bin/pip uninstall --yes pip

FROM python:3.12.12-slim-bookworm
COPY --from=build /opt/device-runtime /opt/device-runtime
RUN useradd --system --uid 10001 --create-home --home-dir /var/lib/device-runtime device-runtime
USER device-runtime
WORKDIR /var/lib/device-runtime
ENV PATH=/opt/device-runtime/bin:$PATH PYTHONUNBUFFERED=1 OMP_NUM_THREADS=1
VOLUME /var/lib/device-runtime
STOPSIGNAL SIGTERM
ENTRYPOINT ["device-runtime"]
CMD ["join", "--data", "/samples"]
