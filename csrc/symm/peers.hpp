// peers.hpp: every rank's heap as this rank sees it. All that kernels may know of a transport.
#pragma once

#include "core/target.hpp"

namespace deep_ll {

constexpr int kMaxRanks = 1024;

// The same offset names the same thing in every heap, so an address is a base and an offset.
struct PeerMap {
    const std::uint64_t* bases;  // [size], this rank's own among them
    int rank;
    int size;

    template <class T>
    TEAM_FN T* at(int peer, std::uint64_t offset) const {
        return reinterpret_cast<T*>(bases[peer] + offset);
    }
    template <class T>
    TEAM_FN T* mine(std::uint64_t offset) const {
        return at<T>(rank, offset);
    }
};

}  // namespace deep_ll
