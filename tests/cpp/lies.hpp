// lies.hpp: peers that write nonsense.
#pragma once

#include <cstdint>
#include <string>

// `num_rounds` times: a dispatch and a combine, phase by phase on one thread, while at one moment one word
// that a peer writes becomes another. The program fails if a byte changes that is nobody's to write, or if a
// word that cannot be is not told, by who met it and with the right name. False: no such scenario.
bool run_lies(const std::string& name, int num_ranks, int num_rounds, std::uint64_t seed);
