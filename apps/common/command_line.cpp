#include "tapestry/apps/common/command_line.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <optional>
#include <type_traits>

#include "tapestry/core/version.h"

namespace apps {

struct CommandLine::Impl {
  CLI::App app;
  std::string group = "Options";  // of the options that are added next
};

Check one_of(const std::vector<std::string>& names) {
  std::string list;
  for (const std::string& name : names) list += (list.empty() ? "{" : ",") + name;
  list += "}";
  return {[=](const std::string& text) -> std::string {
            for (const std::string& name : names)
              if (name == text) return "";
            return text + " is not in " + list;
          },
          list};
}

CommandLine::CommandLine(std::string name, const std::string& about)
    : impl_(new Impl{.app = CLI::App(about, std::move(name))}) {
  impl_->app.option_defaults()->always_capture_default();
  const std::string& shown = impl_->app.get_name();
  impl_->app.set_version_flag("--version", [shown] { return tapestry::version_text(shown); },
                              "Print the version, the libraries of this build and those of this machine");
}

CommandLine::~CommandLine() = default;

template <class T>
void CommandLine::add(const std::string& name, T& value, const std::string& text, const OptionRules& rules) {
  CLI::Option* option = nullptr;
  if constexpr (std::is_same_v<T, bool>) option = impl_->app.add_flag(name, value, text);
  else option = impl_->app.add_option(name, value, text);
  if (rules.check.fault) option->check(CLI::Validator(rules.check.fault, rules.check.shown));
  if (rules.count) option->expected(rules.count);
  if (rules.commas) option->delimiter(',');
  if (rules.last_wins) option->take_last();
  option->group(rules.hidden ? "" : impl_->group);
  if (rules.type) option->type_name(rules.type);
  if (rules.default_text) option->default_str(rules.default_text);
  if (rules.bare) option->expected(0, 1);
}

template void CommandLine::add(const std::string&, bool&, const std::string&, const OptionRules&);
template void CommandLine::add(const std::string&, int&, const std::string&, const OptionRules&);
template void CommandLine::add(const std::string&, std::int64_t&, const std::string&, const OptionRules&);
template void CommandLine::add(const std::string&, std::uint64_t&, const std::string&, const OptionRules&);
template void CommandLine::add(const std::string&, double&, const std::string&, const OptionRules&);
template void CommandLine::add(const std::string&, std::optional<double>&, const std::string&,
                               const OptionRules&);
template void CommandLine::add(const std::string&, std::string&, const std::string&, const OptionRules&);
template void CommandLine::add(const std::string&, std::vector<int>&, const std::string&, const OptionRules&);
template void CommandLine::add(const std::string&, std::vector<std::string>&, const std::string&,
                               const OptionRules&);

int end_of_output(const std::string& program, int status) {
  errno = 0;
  if (std::fflush(stdout) == 0 && !std::ferror(stdout)) return status;
  std::fprintf(stderr, "error: [%s] standard output cannot be written%s%s\n", program.c_str(),
               errno ? ": " : "", errno ? std::strerror(errno) : "");
  return status == 0 ? 1 : status;
}

void CommandLine::group(const std::string& heading) { impl_->group = heading; }
void CommandLine::footer(const std::string& text) { impl_->app.footer(text); }
bool CommandLine::given(const std::string& name) const { return impl_->app.count(name) > 0; }

std::string CommandLine::fault_of(std::vector<std::string> arguments, std::string* shown) {
  CLI::App& app = impl_->app;
  try {
    std::reverse(arguments.begin(), arguments.end());  // CLI11 takes the last one first
    app.parse(std::move(arguments));
  } catch (const CLI::CallForHelp&) {
    if (!shown) return "--help is not a value";
    *shown = app.help();
  } catch (const CLI::CallForVersion& e) {
    if (!shown) return "--version is not a value";
    *shown = e.what();
  } catch (const CLI::ParseError& e) {
    return e.what();
  }
  return "";
}

bool CommandLine::parse(const std::vector<std::string>& arguments) {
  const std::string name = impl_->app.get_name();
  std::string shown;
  const std::string fault = fault_of(arguments, &shown);
  if (!fault.empty())
    for (const std::string& argument : arguments)
      if (const std::string option = argument.substr(0, argument.find('='));
          option == "--local_rank" || option == "--local-rank")
        tapestry::fail<UsageError>("[", name, "] ", argument,
                                   " is not an option of this program, which reads the ",
                                   "variable LOCAL_RANK that a launcher sets; start the program with ",
                                   "tapestry-run --nproc-per-node N and leave the option out");
  tapestry::check<UsageError>(fault.empty(), "[", name, "] ", fault, "; ", name, " --help lists the options");
  std::fputs(shown.c_str(), stdout);
  return shown.empty();
}

int run_program(const std::string& name, const std::function<int()>& program) {
  const auto failed = [](const std::exception& e, int status) {
    std::fflush(stdout);
    std::fprintf(stderr, "error: %s\n", e.what());
    return status;
  };
  // Line-buffered, so that a launcher can forward each line immediately.
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  try {
    return end_of_output(name, program());
  } catch (const UsageError& e) {
    return failed(e, 2);
  } catch (const std::exception& e) {
    return failed(e, 1);
  }
}

int CommandLine::run(int argc, char** argv, const std::function<int()>& program) {
  return run_program(impl_->app.get_name(), [&] {
    return parse({argv + std::min(argc, 1), argv + argc}) ? program() : 0;
  });
}

}  // namespace apps
