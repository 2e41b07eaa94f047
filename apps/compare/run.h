#pragma once
// The comparison itself: runs every mode in child processes and reports the results.
#include <optional>
#include <string>
#include <vector>

#include "tapestry/apps/compare/workload.h"

namespace apps::compare {

struct Options {
  Workload workload;
  std::vector<std::string> modes;     ///< names; the mode of one device is added if it is missing
  std::vector<std::string> parallel;  ///< texts of strategies, one more mode each
  int rounds = 6;                     ///< fewer decide nothing, see verdict.h
  double timeout_s = 300;             ///< per run of a mode
  bool markdown = false;
  std::string json, html, svg;            ///< output files and folder; none if empty
  std::optional<double> memory_mib = {};  ///< of a device; by default that of the smallest GPU
  bool serve = false;                     ///< show the page until a signal ends the program
  int port = 0;                           ///< of the page; 0 takes a free one
  int predict_devices = 0;                ///< also simulate this number of devices; 0 disables it
  int meshes = 0;                         ///< predict all meshes of this number of devices; 0 disables it
  /// The cost of a message between simulated devices: the latency in microseconds, and the bandwidth in GB/s
  /// (1e9 bytes per second). If one is not given, its measured value is used.
  std::optional<double> link_latency_us = {}, link_bandwidth_gbs = {};
  /// The same between simulated devices of two hosts, with Workload::devices_per_host of them on each.
  std::optional<double> cross_latency_us = {}, cross_bandwidth_gbs = {};
};

/// Runs every mode `rounds` times, in turn, each time in a child process with the arguments of this process.
/// Prints the table and writes the files. Returns the exit status: 1 if a mode failed or its losses differ.
int compare(const Options& options, const std::vector<std::string>& arguments);

/// The task of a child process.
struct ChildTask {
  std::string mode;      ///< the name of a mode, or one of the names below
  std::string result;    ///< the file to write
  bool is_rank = false;  ///< the process is one rank of a job
  bool record_memory = false;
};
/// Tasks that measure costs for predictions and for Workload::split: a planner::Profile, a planner::Link
/// within one process, and a planner::Link between processes.
inline constexpr const char *kProfile = "profile", *kLink = "link", *kRanks = "ranks";
int run_child(const ChildTask& task, const Options& options, const std::vector<std::string>& arguments);

}  // namespace apps::compare
