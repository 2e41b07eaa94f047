#pragma once
#include <unistd.h>

#include <utility>

namespace tapestry::distributed {

/// A file descriptor that closes itself.
class Fd {
 public:
  explicit Fd(int fd = -1) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(other.release()) {}
  Fd& operator=(Fd&& other) noexcept {
    close();
    fd_ = other.release();
    return *this;
  }
  ~Fd() { close(); }

  int get() const { return fd_; }
  bool open() const { return fd_ >= 0; }
  int release() { return std::exchange(fd_, -1); }
  void close() {
    if (open()) ::close(release());
  }

 private:
  int fd_;
};

}  // namespace tapestry::distributed
