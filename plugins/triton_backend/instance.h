// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "triton_backend/metrics.h"
#include "triton_backend/model.h"
#include "triton_backend/pending.h"
#include "triton_backend/run.h"
#include "triton_backend/served_instance.h"

namespace padfree {

// One instance of a model: the server's thread packs requests and starts runs; a thread of the instance waits for these
// and answers. With two lanes, one run is packed while another computes.
//
// The server puts requests into one call only if they have the same inputs. Where these change from call to call
// (texts and token ids, texts and pairs, with and without token types), calls return before there is a lane for their
// requests, so that those of the next calls join them in one run; the instance's thread then starts it.
class Instance : public ServedInstance {
 public:
  Instance(std::shared_ptr<Model> model, TRITONBACKEND_ModelInstance* handle, int32_t device);
  ~Instance() override;  // waits until all runs have been answered
  Instance(const Instance&) = delete;
  Instance& operator=(const Instance&) = delete;

  void execute(TRITONBACKEND_Request** requests, uint32_t count) override;

 private:
  struct Started {
    Run run;
    Lane* lane;
  };

  using Requests = std::vector<std::shared_ptr<Pending>>;

  Requests takeOver(TRITONBACKEND_Request** requests, uint32_t count) const;
  bool read(Pending& pending) const;
  void add(const Requests& requests, bool is_mixed);
  void startRuns(size_t left);
  void startRun(Run run, Lane* lane);
  void waitForLane();
  bool areMixed(const Requests& requests);
  void finishRuns();  // what the instance's thread does
  void freeLane(Lane* lane);
  void finish(Started& started);
  void count(const PadfreeSizes& sizes) const;
  void giveResults(Started& started, uint64_t ended);

  const std::shared_ptr<Model> model_;
  TRITONBACKEND_ModelInstance* const handle_;
  const std::shared_ptr<Engine> engine_;
  const InstanceMetrics metrics_;
  std::vector<std::unique_ptr<Lane>> lanes_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Lane*> free_;
  std::deque<Run> waiting_;  // of more than one, all but the last are full
  bool starts_ = false;      // whether the server's thread starts them
  std::deque<Started> started_;
  bool ends_ = false;
  std::thread finisher_;

  // Of the server's thread.
  size_t last_names_ = 0;
  int mixed_calls_ = 0;  // for how many further calls inputs are expected to change
};

}  // namespace padfree
