// Says that 65536 files may be open where the limit is lower. For machines on which nobody may raise it: in a pod
// Elasticsearch starts only with that limit, and the small clusters of the tests open some hundred files.
#define _GNU_SOURCE
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

int getrlimit(__rlimit_resource_t resource, struct rlimit *limit) {
  int result = syscall(SYS_prlimit64, 0, resource, 0, limit);
  if (result == 0 && resource == RLIMIT_NOFILE) {
    if (limit->rlim_cur < 65536) limit->rlim_cur = 65536;
    if (limit->rlim_max < 65536) limit->rlim_max = 65536;
  }
  return result;
}

int getrlimit64(__rlimit_resource_t resource, struct rlimit64 *limit) {
  return getrlimit(resource, (struct rlimit *)limit);
}
