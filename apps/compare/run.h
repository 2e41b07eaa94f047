#pragma once
#include <optional>
#include <string>
#include <vector>

#include "tapestry/apps/compare/workload.h"

namespace apps::compare {

struct Options {
  Workload workload;
  std::vector<std::string> modes;  ///< single is added where it is missing
  int rounds = 3;
  double timeout_s = 300;  ///< of one mode's run
  bool markdown = false;
  std::string json, html, svg;  ///< where to; empty: nowhere
  int predict_devices = 0;      ///< simulate so many too; 0: none
  /// Of a message of the simulated link; as measured where not given.
  std::optional<double> link_latency_us = {}, link_bandwidth_gbs = {};
};

/// Runs every mode `rounds` times, in turn, each time in a process of its own with `arguments`, those of this
/// one. Prints the table and writes the files. The exit status: 1 if a mode failed or its losses differ.
int compare(const Options& options, const std::vector<std::string>& arguments);

/// What such a process does.
struct ChildTask {
  std::string mode;    ///< a mode's name, or what is to be measured
  std::string result;  ///< the file to write
  bool is_rank = false;
};
/// What predictions and Workload::split are made from: a Profile, a Link, and one of processes.
inline constexpr const char *kProfile = "profile", *kLink = "link", *kRanks = "ranks";
int run_child(const ChildTask& task, const Options& options, const std::vector<std::string>& arguments);

}  // namespace apps::compare
