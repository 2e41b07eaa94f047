#pragma once
// Shows the pages of a running program in browsers on this machine.
#include <cstdint>
#include <memory>
#include <string>

namespace apps {

/// A small HTTP server on 127.0.0.1. It has one thread of its own, so no reader makes the program wait, and
/// silent readers do not make others wait. (cpp-httplib has a thread for each connection, at most eight: 100
/// silent readers kept the next one waiting for 57 s.) It answers GET, and only if the address in the browser
/// is one of this machine (so that no other name can be pointed at it), the request does not come from a page
/// of another site, and the path begins with the secret of url(). A reader that is slow, silent or sends
/// anything else loses its connection.
class PageServer {
 public:
  /// Listens at `port`; 0 takes a free one. Throws IoError if it cannot.
  explicit PageServer(int port = 0);
  ~PageServer();
  PageServer(const PageServer&) = delete;
  PageServer& operator=(const PageServer&) = delete;

  /// The address for a browser: "http://127.0.0.1:41000/4f6c.../". Its last part is a secret, which keeps out
  /// other users of the machine.
  const std::string& url() const;

  /// Makes `text` the answer at url() + `name`, in place of an earlier one; the page itself has the name "".
  /// `type` is a media type, such as "text/html; charset=utf-8". Readers that are receiving the earlier text
  /// receive it to its end.
  void publish(const std::string& name, const std::string& type, std::string text);

  /// How many requests were answered with the text `name` so far.
  std::int64_t answered(const std::string& name) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace apps
