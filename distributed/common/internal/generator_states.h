#pragma once
// The state of a rank's random generators as text, for checkpoints.
#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "tapestry/core/device.h"

namespace tapestry::distributed {

/// Devices with the seed and the offset of their generators.
using GeneratorStates = std::vector<std::pair<Device, std::array<std::uint64_t, 2>>>;

/// Returns the states of this rank's generators as "cpu:0 seed offset cpu:1 seed offset".
std::string generator_states();
/// Parses such a text, which words with '=' may precede: see place_in(). Throws IoError, which begins with
/// [op], for another one.
GeneratorStates parse_generator_states(const char* op, const std::string& text);
/// The words in front of the states that say whose they are, such as "data=0/4 stage=1/2", or an empty text.
std::string place_in(const std::string& text);
/// Restores the states of this rank's generators. Devices that do not exist here are skipped.
void set_generator_states(const GeneratorStates& states);
/// Derives the generators of a rank that saved no states from those of rank 0, as manual_seed_by_rank() does.
void derive_generator_states(const GeneratorStates& of_rank_0, int rank);

}  // namespace tapestry::distributed
