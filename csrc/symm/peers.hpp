// peers.hpp: every rank's heap as this rank sees it. All that kernels may know of a transport.
#pragma once

#include "core/target.hpp"

namespace deep_ll {

class Link;

constexpr int kMaxRanks = 1024;

// The same offset names the same thing in every heap, so an address is a base and an offset.
struct PeerMap {
    const std::uint64_t* bases;  // [size], this rank's own among them
    int rank;
    int size;
    Link* link;  // null: every peer's memory is mapped here. On a GPU: a Network (network.hpp)
    const std::uint8_t* linked;  // [size] 1: its base is memory of this rank's own; what is shipped from
                                 // there goes by the link
    std::uint8_t* mask;          // [size, padded to 16] 1: left out. This rank's own; null: nobody ever is
    std::uint64_t notes;         // with a mask: where in each heap its peers leave notes (team/signal.hpp)

    WORD_FN bool has_links() const { return kCanLink && link != nullptr; }
    WORD_FN bool is_linked(int peer) const { return has_links() && global_memory(linked)[peer] != 0; }
    WORD_FN bool ships_later(int peer) const { return kShipsLater && is_linked(peer); }

    WORD_FN bool can_shrink() const { return mask != nullptr; }
    WORD_FN bool is_masked(int peer) const { return can_shrink() && global_memory(mask)[peer] != 0; }

    template <class T>
    WORD_FN T* at(int peer, std::uint64_t offset) const {
        return global_memory(reinterpret_cast<T*>(bases[peer] + offset));
    }
    template <class T>
    WORD_FN T* mine(std::uint64_t offset) const {
        return at<T>(rank, offset);
    }
    // f(peer) for every rank that is not left out, this one first: if all began with rank 0, they would crowd
    // it.
    template <class F>
    TEAM_FN void each(F f) const {
        for (int step = 0; step < size; ++step) {
            const int peer = (rank + step) % size;
            if (!is_masked(peer)) f(peer);
        }
    }
};

}  // namespace deep_ll
