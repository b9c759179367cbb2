"""Pictures of documents and graphs, as HTML by Plotly or as SVG and PNG by matplotlib."""
