//! What a replay finds.

use crate::model::ids::{Id, IdVec};
use crate::replay::liveness::Peak;
use crate::replay::program::{BufferId, DeviceClassId};
use crate::replay::resources::ResourceId;

/// The result of a replay.
#[derive(Debug, Clone, PartialEq)]
pub struct Replayed {
    /// The peak of each device class.
    pub peaks: IdVec<DeviceClassId, Peak>,
    /// From the first start to the last end.
    pub time_s: f64,
    /// How long tasks held each resource.
    pub busy_s: IdVec<ResourceId, f64>,
    /// When each of the program's marks ended; 0 if it is void.
    pub marks_s: Vec<f64>,
}

impl Replayed {
    /// Returns the device class with the highest peak, the first one among equals.
    pub fn peak_class(&self) -> DeviceClassId {
        let classes = self.peaks.ids().rev();
        let highest = classes.max_by(|&a, &b| {
            let (a, b) = (self.peaks[a].bytes, self.peaks[b].bytes);
            a.total_cmp(&b)
        });
        highest.unwrap_or(DeviceClassId::new(0))
    }

    /// Returns the highest peak of any device class.
    pub fn peak(&self) -> Peak {
        self.peaks[self.peak_class()]
    }
}

/// The schedule of one replay. Times and bytes of void tasks are 0.
#[derive(Debug, Clone, Default)]
pub struct Timeline {
    pub start_s: Vec<f64>,
    pub end_s: Vec<f64>,
    /// Per task, the bytes of the live buffers of each device class right after its start.
    pub held_bytes: Vec<f64>,
    /// The live buffers of each device class at its peak.
    pub at_peak: IdVec<DeviceClassId, Vec<BufferId>>,
}
