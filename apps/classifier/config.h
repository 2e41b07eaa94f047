#pragma once
// The saved options of a run, as JSON: config.json in the run's folder, and a copy in each checkpoint.
#include <string>

#include "tapestry/apps/classifier/options.h"

namespace apps {

std::string to_json(const Options& options);

/// The inverse of to_json. Values must be valid as on the command line. A missing or invalid value is
/// replaced by that of `overrides` if the option is in overrides.given; otherwise IoError is thrown. `source`
/// is named in errors.
Options options_from_json(const std::string& text, const std::string& source, const Options& overrides = {});

/// Compares the options of a resumed run, `now`, with its earlier options, `run`. `source` says where the
/// earlier options were read and is named in errors. Options that do not affect the results may differ.
/// --device and --threads, which affect only rounding errors, may differ if the command line sets them, and
/// so may --epochs if the schedule is constant. Such a change is recorded in now.overridden, so that later
/// attempts accept it before the next checkpoint is saved. Throws UsageError if the command line changes
/// another option, and IoError if config.json changes an option.
void check_same_run(Options& now, const Options& run, const std::string& source);

/// Throws UsageError unless this rank's options are those of rank 0. Options that depend on the machine may
/// differ.
void check_same_as_rank_0(const Options& own, const Options& rank_0);

}  // namespace apps
