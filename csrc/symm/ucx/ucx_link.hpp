// ucx_link.hpp: a link over UCX's active messages.
//
// Not its puts: over TCP they need their target's CPU just as well, an answer for each, and a fence before
// each signal that waits for all of them.
#pragma once

#include "symm/landing.hpp"
#include "symm/ucx/attendant.hpp"
#include "symm/ucx/peer.hpp"
#include "symm/ucx/worker.hpp"

namespace deep_ll {

class UcxLink final : public Link {
   public:
    // `patience_ns`: how long a peer may take nothing of what is sent; 0: for ever. Throws LinkError.
    UcxLink(const LandingPlace& place, const WorkerOptions& options, std::int64_t patience_ns);
    ~UcxLink() override;

    // Where peers connect to.
    const std::string& address() const { return address_; }
    // The peer is another process than before, or the same one that begins anew: its messages, and those to
    // it, are numbered from `first_number` on. What its past sent is no message any more. Not while anything
    // is put to it.
    void expect_anew(int peer, std::uint64_t first_number);
    // Once a peer, or once after expect_anew(); the peer has to do the same.
    void connect(int peer, const std::string& address);
    // Waits until these peers, which are connected, have been heard, or one cannot be any more; those that
    // were not.
    std::vector<int> meet(const std::vector<int>& peers, std::int64_t timeout_ns);

    void put(int peer, std::uint64_t offset, const void* from, std::uint64_t bytes) override;
    void signal(int peer, std::span<const LinkWord> words) override;
    void be_patient(const Patience& patience) override { patience_ = patience; }
    bool progress() override;
    void rest() override;
    void leave_out(int peer, const LinkWord& last) override;
    void take_back(int peer) override;
    bool dead(int peer) const override { return !peers_[peer]->reachable(); }
    std::int64_t landed_ns(int peer) const override { return landing_.landed_ns(peer); }

    // Of a dead peer, in UCX's words.
    std::string why_dead(int peer);

    LinkStats stats(int peer);
    // Bad messages by nobody of the group.
    std::uint64_t dropped();
    const std::string& version() const { return version_; }

    // Sends what was put and ends all connections; what cannot be sent in time is lost. For peers that still
    // use theirs, this rank is dead then.
    void close(std::int64_t timeout_ns);

    // Bytes as if they were a message: for tests of what receivers refuse.
    void send_raw(int peer, const void* message, std::uint64_t bytes);

   private:
    static ucs_status_t arrived(void* link,
                                const void* header,
                                std::size_t header_bytes,
                                void* data,
                                std::size_t bytes,
                                const ucp_am_recv_param_t* params);
    static void sent(void* request, ucs_status_t status, void* buffer);
    static void failed(void* peer, ucp_ep_h ep, ucs_status_t status);

    std::vector<int> find_unheard(const std::vector<int>& peers);
    std::unique_ptr<Peer> make_peer() const;
    bool open_message(Peer& peer);
    void begin_message(Peer& peer);
    Buffer* take_buffer(Peer& peer);
    Buffer* idle_buffer(Peer& peer);
    void send_message(Peer& peer);
    void send_bytes(Peer& peer, std::uint64_t bytes);
    bool is_patient(std::int64_t since_ns) const;
    void close_connections(std::int64_t timeout_ns);

    LandingPlace place_;
    Landing landing_;
    std::vector<std::unique_ptr<Peer>> peers_;
    // What peers were before they began anew. Their connections end with the link: see Worker::close.
    std::vector<std::unique_ptr<Peer>> former_;
    std::mutex lock_;
    std::optional<Worker> worker_;  // until it is closed
    const std::string address_, version_;
    std::optional<Attendant> attendant_;
    bool closed_ = false;
    Patience patience_{};
};

}  // namespace deep_ll
