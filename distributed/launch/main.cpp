// tapestry-run starts a program as several ranks. `tapestry-run --help` describes its options.
#include <cstdio>
#include <exception>

#include "tapestry/core/error.h"
#include "tapestry/core/version.h"
#include "tapestry/distributed/launch/internal/doctor.h"
#include "tapestry/distributed/launch/internal/launch.h"

int main(int argc, char** argv) {
  using namespace tapestry::distributed::launch;
  try {
    const LaunchOptions options =
        parse_launch_options({argv + 1, argv + argc}, this_environment(), this_machine());
    if (options.help) return std::fputs(launch_help().c_str(), stdout) < 0;
    if (options.version) return std::fputs(tapestry::version_text("tapestry-run").c_str(), stdout) < 0;
    return options.doctor ? doctor(options) : launch(options);
  } catch (const tapestry::ValueError& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 2;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}
