/* A kubelet as far as the runner of an upgrade sees one: says its version, reads the configuration that kubeadm writes, answers /healthz. */
#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

int main(int argc, char **argv) {
  if (argc == 2 && !strcmp(argv[1], "--version")) {
    puts("Kubernetes " VERSION);
    return 0;
  }
  if (argc != 3) return 64;
  int port = 0;
  sscanf(argv[1], "%d", &port);
  /* Like the real one, it does not start with a configuration of a later release than its own. */
  char configured[32] = "";
  FILE *file = fopen(argv[2], "r");
  if (!file || fscanf(file, "%31s", configured) != 1 || strcmp(configured, VERSION) > 0) return 1;
  int one = 1, server = socket(AF_INET, SOCK_STREAM, 0);
  setsockopt(server, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
  setsockopt(server, SOL_SOCKET, SO_REUSEPORT, &one, sizeof one);
  struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  if (bind(server, (struct sockaddr *)&at, sizeof at) || listen(server, 16)) return 2;
  for (;;) {
    char asked[1024];
    int client = accept(server, NULL, NULL);
    if (client < 0) continue;
    if (read(client, asked, sizeof asked) > 0)
      dprintf(client, "HTTP/1.1 " ANSWER "\r\nContent-Length: %zu\r\nConnection: close\r\n\r\n" VERSION, strlen(VERSION));
    close(client);
  }
}
