# One file, every role. Build it with `make image`: the binary is made outside, so that the image
# needs no toolchain and no network.
FROM scratch
LABEL org.opencontainers.image.title="navigator" \
      org.opencontainers.image.description="Runs databases on Kubernetes: API server, controller and pilots in one binary" \
      org.opencontainers.image.url="https://github.com/jetstack/navigator" \
      org.opencontainers.image.source="https://github.com/jetstack/navigator" \
      org.opencontainers.image.documentation="https://github.com/jetstack/navigator/tree/master/docs" \
      org.opencontainers.image.vendor="Jetstack" \
      org.opencontainers.image.licenses="Apache-2.0"
# Version, revision and time of a build are labels too: `make image` knows them.
COPY navigator /navigator
# The image is a copy of code of others, so it holds their licences too; no process reads them.
COPY THIRD-PARTY-NOTICES.txt /licenses/THIRD-PARTY-NOTICES.txt
USER 65532:65532
ENTRYPOINT ["/navigator"]
