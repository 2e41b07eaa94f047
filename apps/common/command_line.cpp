#include "tapestry/apps/common/command_line.h"

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <optional>
#include <string_view>
#include <type_traits>

#include "tapestry/core/version.h"

namespace apps {

struct CommandLine::Impl {
  CLI::App app;
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
    : impl_(new Impl{CLI::App(about, std::move(name))}) {
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
  if (rules.hidden) option->group("");
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

void CommandLine::footer(const std::string& text) { impl_->app.footer(text); }
bool CommandLine::given(const std::string& name) const { return impl_->app.count(name) > 0; }

int CommandLine::run(int argc, char** argv, const std::function<int()>& program) {
  CLI::App& app = impl_->app;
  const auto failed = [](const std::exception& e, int status) {
    std::fflush(stdout);
    std::fprintf(stderr, "error: %s\n", e.what());
    return status;
  };
  std::setvbuf(stdout, nullptr, _IOLBF,
               0);  // line-buffered, so that a launcher can forward each line immediately
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    std::fputs(app.help().c_str(), stdout);
    return end_of_output(app.get_name(), 0);
  } catch (const CLI::CallForVersion& e) {
    std::fputs(e.what(), stdout);
    return end_of_output(app.get_name(), 0);
  } catch (const CLI::ParseError& e) {
    for (int i = 1; i < argc; ++i) {
      const std::string_view option =
          std::string_view(argv[i]).substr(0, std::string_view(argv[i]).find('='));
      if (option != "--local_rank" && option != "--local-rank") continue;
      std::fprintf(stderr,
                   "error: [%s] %s is not an option of this program, which reads the variable LOCAL_RANK "
                   "that a launcher sets; "
                   "start the program with tapestry-run --nproc-per-node N and leave the option out\n",
                   app.get_name().c_str(), argv[i]);
      return 2;
    }
    std::fprintf(stderr, "error: [%s] %s; %s --help lists the options\n", app.get_name().c_str(), e.what(),
                 app.get_name().c_str());
    return 2;
  }
  try {
    return end_of_output(app.get_name(), program());
  } catch (const UsageError& e) {
    return failed(e, 2);
  } catch (const std::exception& e) {
    return failed(e, 1);
  }
}

}  // namespace apps
