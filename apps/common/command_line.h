#pragma once
// What the small programs' command lines share. Sees CLI11: for their main.cpp.
#include <CLI/CLI.hpp>
#include <charconv>
#include <cstdio>
#include <exception>
#include <string>
#include <string_view>

#include "tapestry/core/error.h"

namespace apps {

/// Accepts numbers of type T from `low` to `high`. Stricter than CLI11's own, which takes nan for any of them
/// and -1 for an unsigned one.
template <class T>
CLI::Validator between(T low, T high) {
  return {[=](const std::string& text) -> std::string {
            T value{};
            const char* const end = text.data() + text.size();
            const auto [stop, error] = std::from_chars(text.data(), end, value);
            if (error == std::errc() && stop == end && low <= value && value <= high) return "";
            return tapestry::concat({text, " is not a number from ", low, " to ", high});
          },
          ""};
}

/// Parses, then runs `program()`, whose result is the exit status: 0 also for --help, 1 for an error, 2 for
/// wrong options. Errors go to standard error.
template <class F>
int run(CLI::App& app, int argc, char** argv, const F& program) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);  // a launcher that reads it sees each line when it is there
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    std::fputs(app.help().c_str(), stdout);
    return 0;
  } catch (const CLI::ParseError& e) {
    for (int i = 1; i < argc; ++i) {
      const std::string_view option =
          std::string_view(argv[i]).substr(0, std::string_view(argv[i]).find('='));
      if (option != "--local_rank" && option != "--local-rank") continue;
      std::fprintf(
          stderr,
          "error: [%s] %s: nobody passes it here: the launcher sets LOCAL_RANK, and the program reads it; "
          "start it with tapestry-run --nproc-per-node N, and leave the option out\n",
          app.get_name().c_str(), argv[i]);
      return 2;
    }
    std::fprintf(stderr, "error: [%s] %s; %s --help lists the options\n", app.get_name().c_str(), e.what(),
                 app.get_name().c_str());
    return 2;
  }
  try {
    return program();
  } catch (const std::exception& e) {
    std::fflush(stdout);
    std::fprintf(stderr, "error: %s\n", e.what());
    return 1;
  }
}

}  // namespace apps
