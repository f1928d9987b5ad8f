// worker.hpp: one worker of UCX: a thread at a time, asked by its owner's lock.
#pragma once

#include <vector>

#include "symm/ucx/ucp.hpp"

namespace deep_ll {

// NOTE [trust]: Landing checks all that comes as a message. UCX's own wire format does not: whoever reaches
// its TCP port and speaks it can write anywhere into this process, no secret asked. So a link listens on one
// interface only, and the network behind that must be the job's own, as for MPI. (TCP_PUT_ENABLE=n changes
// nothing: with it UCX 1.22 sends no such requests, but still obeys them.)
struct WorkerOptions {
    std::string library_path;  // "": see Ucp
    std::string net_device;    // the only network interface that is used and listened on; "": all
    int size;                  // ranks
};

class Worker {
   public:
    explicit Worker(const WorkerOptions& options);
    ~Worker();
    Worker(const Worker&) = delete;
    Worker& operator=(const Worker&) = delete;

    const Ucp& ucp() const { return ucp_; }
    const std::string& address() const { return address_; }
    // Readable after arm() when there is something to do.
    int event_fd() const { return event_fd_; }

    // Messages go to `handler(context, ...)`, inside progress().
    void receive(ucp_am_recv_callback_t handler, void* context);
    // `on_error(context, ...)` is called inside progress() when the peer is gone.
    ucp_ep_h connect(const std::string& address, ucp_err_handler_cb_t on_error, void* context);
    // `done(request, status, context)` is called inside progress() unless null or an error is returned.
    ucs_status_ptr_t send(ucp_ep_h to,
                          const std::uint8_t* message,
                          std::uint64_t bytes,
                          ucp_send_nbx_callback_t done,
                          void* context);
    bool progress() { return ucp_.worker_progress(worker_) != 0; }
    // False: there is something to do already.
    bool arm() { return ucp_.worker_arm(worker_) != UCS_ERR_BUSY; }
    // Done when all that was sent has left.
    ucs_status_ptr_t flush(ucp_ep_h ep);
    // What has not left is lost. No progress after this, but the worker's end.
    //
    // NOTE [no progress after a close]: when a connection breaks while it is being closed, UCX's TCP frees it
    // in the midst of handling its event, and goes on with what it freed: processes died (UCX 1.22).
    void close(ucp_ep_h ep);
    // Progresses until the requests are done, or it is `deadline_ns`. They are freed.
    void finish(const std::vector<ucs_status_ptr_t>& requests, std::int64_t deadline_ns);

   private:
    void init(const WorkerOptions& options);
    void create();

    Ucp ucp_;
    ucp_context_h context_ = nullptr;
    ucp_worker_h worker_ = nullptr;
    std::string address_;
    int event_fd_ = -1;
};

}  // namespace deep_ll
