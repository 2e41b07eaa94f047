#pragma once
// tapestry-checkpoint: shows sharded checkpoints, and converts them from and to one file.
#include <string>
#include <vector>

namespace tapestry::distributed::checkpoint {

/// Returns the text of --help.
std::string program_help();
/// Runs the program with its arguments and returns what it prints. Throws ValueError for wrong arguments, and
/// IoError for files that cannot be read or written.
std::string run_program(const std::vector<std::string>& arguments);

/// Writes one safetensors file that nn::load_checkpoint, nn::load_model and PyTorch read. Reads and writes
/// about 16 MiB at a time.
void merge_checkpoint(const std::string& folder, const std::string& file);
/// Divides a model file, or a checkpoint of nn::save_checkpoint, into the shards of `ranks` ranks, as
/// fully_shard() divides parameters. The folder must not contain a checkpoint.
void split_checkpoint(const std::string& file, const std::string& folder, int ranks);

}  // namespace tapestry::distributed::checkpoint
