#pragma once
// Runs code in a new PID namespace, as in another container, or in a process without file locks.
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <exception>
#include <optional>

namespace tests {

/// Calls `fn` in a forked process and returns its exit status, which is what `fn` returns. Returns 125 if
/// `fn` throws, and 124 if a signal ends the process.
template <class F>
int in_fork(F&& fn) {
  const pid_t child = fork();
  if (child < 0) return 126;
  if (child == 0) {
    try {
      _exit(fn());
    } catch (const std::exception& e) {
      std::fprintf(stderr, "%s\n", e.what());
      _exit(125);
    }
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 124;
}

/// Like in_fork(), but `fn` runs in a new PID namespace, in which processes of the old namespace have no
/// PID. Returns nothing if the kernel permits no new namespace.
template <class F>
std::optional<int> in_new_pid_namespace(F&& fn) {
  constexpr int kRefused = 123;
  const int status = in_fork([&] {
    if (unshare(CLONE_NEWPID) != 0 && unshare(CLONE_NEWUSER | CLONE_NEWPID) != 0) return kRefused;
    return in_fork(fn);  // only children of the process that called unshare() are in the new namespace
  });
  if (status == kRefused) return {};
  return status;
}

/// From now on, open file description locks fail with ENOLCK in this process, as on a file system without
/// locks. Returns false if the kernel permits no filter of system calls.
inline bool forbid_locks() {
  sock_filter code[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_fcntl, 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args[1])),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, F_OFD_SETLK, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOLCK),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program{sizeof code / sizeof code[0], code};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

}  // namespace tests
