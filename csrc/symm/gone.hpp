// gone.hpp: peers that will not publish any more. Host only.
#pragma once

#include "symm/heap.hpp"
#include "symm/link.hpp"
#include "symm/peers.hpp"

namespace deep_ll {

// Nothing comes from the peer any more: its process ended, or it closed its buffer. What it published before
// is there, or (behind a link) may be, so look at its words after this and not before.
inline bool is_gone(const PeerMap& peers, int peer) {
    if (peers.is_linked(peer)) return peers.link->dead(peer);
    return peers.at<HeapHeader>(peer, 0)->gone.load(std::memory_order_acquire) != 0;
}

}  // namespace deep_ll
