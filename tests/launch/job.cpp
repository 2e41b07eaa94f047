#include "tests/launch/job.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <sstream>

namespace tests {
namespace {

constexpr const char* kMark = "TAPESTRY_TEST_MARK=";

std::vector<char*> pointers(std::vector<std::string>& strings) {
  std::vector<char*> out;
  for (std::string& s : strings) out.push_back(s.data());
  out.push_back(nullptr);
  return out;
}

std::vector<int> all_processes() {
  std::vector<int> pids;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const std::string name = entry.path().filename();
    if (name.find_first_not_of("0123456789") == std::string::npos) pids.push_back(std::stoi(name));
  }
  return pids;
}

/// Reads a file in /proc, which may disappear at any time.
std::string slurp(int pid, const char* file) {
  std::ifstream in("/proc/" + std::to_string(pid) + "/" + file, std::ios::binary);
  std::ostringstream bytes;
  bytes << in.rdbuf();
  return std::move(bytes).str();
}

/// Returns the fields after the process name, which is in parentheses.
std::istringstream stat_of(int pid) {
  const std::string stat = slurp(pid, "stat");
  const auto name_end = stat.rfind(')');
  return std::istringstream(name_end == std::string::npos ? "" : stat.substr(name_end + 1));
}

}  // namespace

std::string own_path() { return std::filesystem::read_symlink("/proc/self/exe"); }
std::string launcher_path() { return std::filesystem::path(own_path()).parent_path() / "tapestry-run"; }

char state_of(int pid) {
  char state = 0;
  stat_of(pid) >> state;
  return state;
}

std::string name_of(int pid) {
  std::string name;
  std::istringstream(slurp(pid, "comm")) >> name;
  return name;
}

Job::Job(std::vector<std::string> arguments, std::vector<std::string> variables, const std::string& program) {
  static std::atomic<int> count{0};
  mark_ = kMark + std::to_string(getpid()) + "-" + std::to_string(count++);
  arguments.insert(arguments.begin(), program);
  for (char** entry = environ; *entry; ++entry) {
    const std::string variable(*entry);
    // Removes variables of the machine that runs these tests.
    if (!variable.starts_with("OMP_NUM_THREADS=") && !variable.starts_with("TAPESTRY_SECRET="))
      variables.push_back(variable);
  }
  variables.push_back(mark_);
  variables.push_back("DIR=" + dir_.path().string());
  const std::vector<char*> argv = pointers(arguments), envp = pointers(variables);
  const std::string out = dir_ / "out", err = dir_ / "err";
  started_ = std::chrono::steady_clock::now();
  pid_ = fork();
  if (pid_ == 0) {
    dup2(open(out.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600), STDOUT_FILENO);
    dup2(open(err.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600), STDERR_FILENO);
    std::signal(SIGINT, SIG_DFL);  // a shell that started the tests in the background has ignored it
    execve(argv[0], argv.data(), envp.data());
    _exit(99);
  }
  if (pid_ < 0) throw std::runtime_error("fork failed");
  if (!made("err")) throw std::runtime_error("the launcher did not start");
}

Job::~Job() {
  if (status_ < 0) kill(pid_, SIGKILL);
  for (const int pid : processes()) kill(pid, SIGKILL);
  if (status_ < 0) waitpid(pid_, nullptr, 0);
}

int Job::wait(double seconds) {
  if (status_ >= 0) return status_;
  int status = 0;
  if (!eventually([&] { return waitpid(pid_, &status, WNOHANG) == pid_; }, seconds)) return -1;
  status_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return status_;
}

double Job::seconds() const {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - started_).count();
}

std::string Job::err_last_line() const {
  std::istringstream lines(err());
  std::string last;
  for (std::string line; std::getline(lines, line);) last = line;
  return last;
}

bool Job::made(const std::string& name, double seconds) const {
  return eventually([&] { return std::filesystem::exists(dir_ / name); }, seconds);
}

std::set<int> Job::processes() const {
  std::set<int> found;
  for (const int pid : all_processes()) {
    const std::string environment = '\0' + slurp(pid, "environ");
    if (pid != getpid() && environment.find('\0' + mark_ + '\0') != std::string::npos && state_of(pid) != 'Z')
      found.insert(pid);
  }
  return found;
}

bool Job::all_gone(double seconds) const {
  return eventually([&] { return processes().empty(); }, seconds);
}

std::set<int> Job::children() const {
  std::set<int> found;
  for (const int pid : all_processes()) {
    char state = 0;
    int parent = 0;
    if (stat_of(pid) >> state >> parent && parent == pid_) found.insert(pid);
  }
  return found;
}

}  // namespace tests
